# What runs under each MPI that is there with its launcher: the conformance suite, unchanged, and programs of their own.
set(mpi_tests ${CMAKE_CURRENT_SOURCE_DIR}/mpi)

function(tessera_mpi_test mpi name ranks what)
  string(TOUPPER ${mpi} MPI)
  add_test(NAME mpi.${mpi}_${name}
           COMMAND ${mpi_tests}/launch ${mpi} ${TESSERA_${MPI}_RUN} ${ranks} ${what} ${ARGN})
  # One at a time: each has more ranks than there are cores as it is.
  set_tests_properties(mpi.${mpi}_${name} PROPERTIES LABELS mpi TIMEOUT ${TESSERA_TEST_TIMEOUT} RUN_SERIAL ON)
endfunction()

# A program that includes <mpi.h>, with that MPI's own flags.
function(tessera_mpi_program name source compiler)
  execute_process(COMMAND ${compiler} -show OUTPUT_VARIABLE command OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(words UNIX_COMMAND "${command}")
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER words INCLUDE REGEX "^-[Ll]")
  add_executable(${name} ${source})
  target_include_directories(${name} SYSTEM PRIVATE ${folders})
  target_compile_definitions(${name} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(${name} PRIVATE tessera::tessera ${words})
  tessera_own_code(${name})
endfunction()

add_executable(mpi_plain ${mpi_tests}/plain.cpp)
target_link_libraries(mpi_plain PRIVATE tessera::tessera)
tessera_own_code(mpi_plain)

foreach(mpi openmpi mpich)
  string(TOUPPER ${mpi} MPI)
  if(NOT TESSERA_${MPI}_CXX OR NOT TESSERA_${MPI}_RUN)
    continue()
  endif()
  tessera_mpi_program(mpi_own_calls_${mpi} ${mpi_tests}/own_calls.cpp ${TESSERA_${MPI}_CXX})
  foreach(ranks 1 2 3 4 7)
    tessera_mpi_test(${mpi} ${ranks} ${ranks} passes
                     $<TARGET_FILE:test_collective> --gtest_filter=*mpi* --gtest_brief=1)
    set_tests_properties(mpi.${mpi}_${ranks} PROPERTIES ENVIRONMENT TESSERA_TEST_MPI=${ranks})
  endforeach()
  tessera_mpi_test(${mpi} plain 3 right $<TARGET_FILE:mpi_plain> works)
  tessera_mpi_test(${mpi} plain_alone 1 right $<TARGET_FILE:mpi_plain> works)
  tessera_mpi_test(${mpi} own_calls 4 right $<TARGET_FILE:mpi_own_calls_${mpi}>)
  tessera_mpi_test(${mpi} absent 3 absent $<TARGET_FILE:mpi_plain> absent)
  tessera_mpi_test(${mpi} leaves 3 leaves $<TARGET_FILE:mpi_plain> leaves)
endforeach()
