# The library knows MPI only through a small library for each MPI that is there (src/transport/mpi/shim.cpp), which it
# loads when a program runs under that MPI. Where none is there nothing is missing until then.
# Elsewhere than on Debian, name the compilers and launchers: -DTESSERA_OPENMPI_CXX=…, -DTESSERA_OPENMPI_RUN=….
find_program(TESSERA_OPENMPI_CXX mpicxx.openmpi)
find_program(TESSERA_OPENMPI_RUN mpirun.openmpi)
find_program(TESSERA_MPICH_CXX mpicxx.mpich)
find_program(TESSERA_MPICH_RUN NAMES mpirun.mpich mpiexec.hydra)
mark_as_advanced(TESSERA_OPENMPI_CXX TESSERA_OPENMPI_RUN TESSERA_MPICH_CXX TESSERA_MPICH_RUN)

set(mpi_folder ${PROJECT_SOURCE_DIR}/src/transport/mpi)
set(mpi_built ${PROJECT_BINARY_DIR}/mpi)
file(MAKE_DIRECTORY ${mpi_built})
# The wrapper knows its headers and libraries; the old C++ bindings, which warn, are left out.
set(mpi_flags -std=c++20 -O2 -Wall -Wextra -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $<$<BOOL:${TESSERA_WERROR}>:-Werror>)

foreach(mpi openmpi mpich)
  string(TOUPPER ${mpi} MPI)
  if(TESSERA_${MPI}_CXX)
    set(shim ${mpi_built}/libtessera_${mpi}.so)
    add_custom_command(OUTPUT ${shim}
      COMMAND ${TESSERA_${MPI}_CXX} ${mpi_flags} -fPIC -shared -fvisibility=hidden ${mpi_folder}/shim.cpp -o ${shim}
      DEPENDS ${mpi_folder}/shim.cpp ${mpi_folder}/api.hpp
      COMMAND_EXPAND_LISTS VERBATIM)
    add_custom_target(tessera_${mpi} DEPENDS ${shim})
    add_dependencies(tessera tessera_${mpi})  # whoever builds the library has it, the command line and the install too
    install(PROGRAMS ${shim} DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera)
    if(TESSERA_PYTHON)
      install(PROGRAMS ${shim} DESTINATION tessera/tessera COMPONENT python)  # in "tessera" beside the package's library
    endif()
  endif()
endforeach()

# A program of the build finds them where they were built, others where they are installed. (By themselves, as a definition of one
# source would reach all that are compiled with it.)
set_source_files_properties(${mpi_folder}/library.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_property(SOURCE ${mpi_folder}/library.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             TESSERA_BUILD_ROOT="${CMAKE_BINARY_DIR}" TESSERA_MPI_BUILT="${mpi_built}"
             TESSERA_MPI_INSTALLED="${CMAKE_INSTALL_FULL_LIBDIR}/tessera")
