# The players of `tessera bench` that are programs of their own, in build/bench/: one MPI source, built with each MPI that
# is there, and a Python script. Where an MPI is missing the command line builds all the same and says so when asked.
# tesseraMpi.cmake has found the compilers and launchers.
set(players ${PROJECT_SOURCE_DIR}/bench/players)
file(GLOB player_headers CONFIGURE_DEPENDS ${players}/*.hpp)
configure_file(${players}/gloo_player.py ${PROJECT_BINARY_DIR}/bench/gloo_player.py COPYONLY)
install(FILES ${players}/gloo_player.py DESTINATION libexec/tessera)

add_custom_target(bench_players)  # not in ALL: only benchmarks need them
foreach(mpi OPENMPI MPICH)
  set(launcher "")
  if(TESSERA_${mpi}_CXX AND TESSERA_${mpi}_RUN)
    string(TOLOWER player_${mpi} name)
    set(program ${PROJECT_BINARY_DIR}/bench/${name})
    add_custom_command(OUTPUT ${program}
      # The wrapper knows its headers and libraries; the old C++ bindings, which warn, are left out.
      COMMAND ${TESSERA_${mpi}_CXX} -std=c++20 -O3 -Wall -Wextra -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
              $<$<BOOL:${TESSERA_WERROR}>:-Werror> ${players}/mpi_player.cpp -o ${program}
      DEPENDS ${players}/mpi_player.cpp ${player_headers}
      COMMAND_EXPAND_LISTS VERBATIM)
    add_custom_target(bench_${name} DEPENDS ${program})
    add_dependencies(bench_players bench_${name})
    install(PROGRAMS ${program} DESTINATION libexec/tessera OPTIONAL)
    # No player, but a question of its own: whether that MPI's types are faster than packing.
    string(TOLOWER datatypes_${mpi} name)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/bench/${name}
      COMMAND ${TESSERA_${mpi}_CXX} -std=c++20 -O3 -Wall -Wextra -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
              $<$<BOOL:${TESSERA_WERROR}>:-Werror> ${players}/datatypes.cpp -o ${PROJECT_BINARY_DIR}/bench/${name}
      DEPENDS ${players}/datatypes.cpp
      COMMAND_EXPAND_LISTS VERBATIM)
    add_custom_target(bench_${name} DEPENDS ${PROJECT_BINARY_DIR}/bench/${name})
    add_dependencies(bench_players bench_${name})
    set(launcher ${TESSERA_${mpi}_RUN})
  endif()
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/cli/bench_run.cpp APPEND PROPERTY
               COMPILE_DEFINITIONS TESSERA_${mpi}_RUN="${launcher}")
endforeach()
