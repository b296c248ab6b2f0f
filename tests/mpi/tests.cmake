# What runs under each MPI that is there with its launcher: the conformance suite, unchanged, and programs of their own.
set(mpi_tests ${CMAKE_CURRENT_SOURCE_DIR}/mpi)

function(tessera_mpi_test mpi name ranks what)
  string(TOUPPER ${mpi} MPI)
  add_test(NAME mpi.${mpi}_${name}
           COMMAND ${mpi_tests}/launch ${mpi} ${TESSERA_${MPI}_RUN} ${ranks} ${what} ${ARGN})
  # One at a time: each has more ranks than there are cores as it is. But ranks that only wait for one that does not come
  # leave the cores to others.
  set(labels mpi)
  set(alone ON)
  if(what MATCHES "^(absent|aborts|leaves|saves|killed)$" OR name MATCHES "splits|comes_late|gives_up")
    set(labels mpi waits)
    set(alone OFF)
  endif()
  set_tests_properties(mpi.${mpi}_${name} PROPERTIES LABELS "${labels}" TIMEOUT ${TESSERA_TEST_TIMEOUT} RUN_SERIAL ${alone})
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

add_executable(mpi_plain ${mpi_tests}/plain.cpp ${mpi_tests}/plain_hosts.cpp ${mpi_tests}/plain_late.cpp)
set_target_properties(mpi_plain PROPERTIES ENABLE_EXPORTS ON)  # one of its functions comes before the C library's
target_link_libraries(mpi_plain PRIVATE tessera::tessera)
tessera_own_code(mpi_plain)

add_executable(mpi_lengths ${mpi_tests}/lengths.cpp)
target_include_directories(mpi_lengths PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(mpi_lengths PRIVATE tessera::tessera)
tessera_own_code(mpi_lengths)

# As so many hosts (TESSERA_HOSTS), on this one machine.
function(tessera_on_hosts mpi name hosts)
  set_property(TEST mpi.${mpi}_${name} APPEND PROPERTY ENVIRONMENT TESSERA_HOSTS=${hosts} ${ARGN})
endfunction()

foreach(mpi openmpi mpich)
  string(TOUPPER ${mpi} MPI)
  if(NOT TESSERA_${MPI}_CXX OR NOT TESSERA_${MPI}_RUN)
    continue()
  endif()
  # The conformance suite: every rank a host, so that all goes through MPI; and several ranks on each.
  foreach(case 1x1 2x2 3x3 4x4 7x7 4x1 3x2 4x2 7x2 7x4)
    string(REGEX MATCH "^[0-9]+" ranks ${case})
    string(REGEX MATCH "[0-9]+$" hosts ${case})
    tessera_mpi_test(${mpi} ${case} ${ranks} passes
                     $<TARGET_FILE:test_collective> --gtest_filter=*mpi* --gtest_brief=1)
    tessera_on_hosts(${mpi} ${case} ${hosts} TESSERA_TEST_MPI=${ranks})
  endforeach()
  # Counts of copies and messages, at prices that make one round the cheapest.
  tessera_mpi_test(${mpi} direct 7 passes $<TARGET_FILE:test_collective> --gtest_filter=*/CopyConformance*mpi* --gtest_brief=1)
  tessera_on_hosts(${mpi} direct 7 TESSERA_TEST_MPI=7 TESSERA_NETWORK=${mpi_tests}/direct.json)
  tessera_mpi_test(${mpi} vote 7 passes $<TARGET_FILE:test_collective> --gtest_filter=*mpi* --gtest_brief=1)
  tessera_on_hosts(${mpi} vote 4 TESSERA_TEST_MPI=7 TESSERA_VOTE_FROM=2)
  tessera_mpi_test(${mpi} plan 4 passes $<TARGET_FILE:test_plan> --gtest_filter=*mpi* --gtest_brief=1)
  tessera_on_hosts(${mpi} plan 2 TESSERA_TEST_MPI=4)

  tessera_mpi_program(mpi_own_calls_${mpi} ${mpi_tests}/own_calls.cpp ${TESSERA_${MPI}_CXX})
  tessera_mpi_program(mpi_counted_${mpi} ${mpi_tests}/counted.cpp ${TESSERA_${MPI}_CXX})
  # So that their functions come before MPI's.
  set_target_properties(mpi_own_calls_${mpi} mpi_counted_${mpi} PROPERTIES ENABLE_EXPORTS ON)
  foreach(level single serialized)
    tessera_mpi_test(${mpi} own_calls_${level} 3 right $<TARGET_FILE:mpi_own_calls_${mpi}> ${level})
    tessera_on_hosts(${mpi} own_calls_${level} 3)
  endforeach()
  foreach(hosts 1 2 4)
    tessera_mpi_test(${mpi} plain_on_${hosts} 4 right $<TARGET_FILE:mpi_plain> works)
    tessera_mpi_test(${mpi} own_calls_on_${hosts} 7 right $<TARGET_FILE:mpi_own_calls_${mpi}>)
    tessera_mpi_test(${mpi} hosts_${hosts} 7 right $<TARGET_FILE:mpi_plain> hosts)
    tessera_mpi_test(${mpi} absent_on_${hosts} 4 absent $<TARGET_FILE:mpi_plain> absent)
    tessera_mpi_test(${mpi} killed_on_${hosts} 4 killed $<TARGET_FILE:mpi_plain> killed)
    tessera_mpi_test(${mpi} leaves_on_${hosts} 4 leaves $<TARGET_FILE:mpi_plain> leaves)
    foreach(name plain_on_${hosts} own_calls_on_${hosts} hosts_${hosts} absent_on_${hosts} killed_on_${hosts}
                 leaves_on_${hosts})
      tessera_on_hosts(${mpi} ${name} ${hosts})
    endforeach()
  endforeach()
  # Every schedule, by prices that make it the cheapest: on ranks, on which host how many, skewed and even.
  foreach(case 7x7-messages-logarithmic-logarithmic
          14x7-messages-logarithmic-logarithmic 3x3-bytes-ring-direct 7x7-bytes-ring-direct 7x3-bytes-ring-direct
          3x3-rounds-spread-direct 7x7-rounds-spread-direct 7x3-rounds-spread-direct)
    string(REGEX MATCH "^([0-9]+)x([0-9]+)-([a-z]+)-([a-z]+)-([a-z]+)$" all ${case})
    set(hosts ${CMAKE_MATCH_2})
    set(prices ${mpi_tests}/dear_${CMAKE_MATCH_3}.json)
    tessera_mpi_test(${mpi} ${case} ${CMAKE_MATCH_1} right
                     $<TARGET_FILE:mpi_plain> schedules ${CMAKE_MATCH_4} ${CMAKE_MATCH_5})
    tessera_on_hosts(${mpi} ${case} ${hosts} TESSERA_NETWORK=${prices})
  endforeach()
  # And what they gather and sum in the conformance suite.
  set(prices dear_rounds)
  if(mpi STREQUAL openmpi)
    set(prices dear_messages dear_bytes)
  endif()
  foreach(dear ${prices})
    tessera_mpi_test(${mpi} ${dear} 7 passes $<TARGET_FILE:test_collective>
                     "--gtest_filter=*/GatherConformance*mpi*:*/ReduceConformance*mpi*:*/RootConformance*mpi*"
                     --gtest_brief=1)
    tessera_on_hosts(${mpi} ${dear} 5 TESSERA_TEST_MPI=7 TESSERA_NETWORK=${mpi_tests}/${dear}.json)
  endforeach()
  # Sums in logarithmic rounds have the same bits: every rank is a host.
  tessera_mpi_test(${mpi} dear_messages_apart 7 passes $<TARGET_FILE:test_collective>
                   "--gtest_filter=*/ReduceConformance*mpi*:*/RootConformance*mpi*" --gtest_brief=1)
  tessera_on_hosts(${mpi} dear_messages_apart 7 TESSERA_TEST_MPI=7 TESSERA_NETWORK=${mpi_tests}/dear_messages.json)
  # And those of ranks that share hosts, which add up there first: one block on each, the last shorter; and three.
  foreach(case messages_on-7-4 rounds_on-7-2 bytes_on-7-4 rounds_beside-12-2)
    string(REGEX MATCH "^([a-z]+)_([a-z]+)-([0-9]+)-([0-9]+)$" all ${case})
    set(name folded_${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
    set(variables TESSERA_TEST_MPI=${CMAKE_MATCH_3} TESSERA_NETWORK=${mpi_tests}/dear_${CMAKE_MATCH_1}.json)
    set(hosts ${CMAKE_MATCH_4})
    tessera_mpi_test(${mpi} ${name} ${CMAKE_MATCH_3} passes $<TARGET_FILE:test_collective>
                     "--gtest_filter=*/ReduceConformance*mpi*:*/RootConformance*mpi*" --gtest_brief=1)
    tessera_on_hosts(${mpi} ${name} ${hosts} ${variables})
  endforeach()
  tessera_mpi_test(${mpi} long_rows 8 right $<TARGET_FILE:mpi_plain> long_rows)
  tessera_on_hosts(${mpi} long_rows 2)
  tessera_mpi_test(${mpi} long_rows_directly 8 right $<TARGET_FILE:mpi_plain> long_rows)
  tessera_on_hosts(${mpi} long_rows_directly 2 TESSERA_NETWORK=${mpi_tests}/dear_messages.json)
  tessera_mpi_test(${mpi} measured 4 right $<TARGET_FILE:mpi_plain> works)
  tessera_on_hosts(${mpi} measured 4 TESSERA_NETWORK=measure)
  tessera_mpi_test(${mpi} odd_host 3 right $<TARGET_FILE:mpi_plain> odd_host)
  tessera_mpi_test(${mpi} saves 4 saves $<TARGET_FILE:mpi_plain> saves)
  tessera_on_hosts(${mpi} saves 4)
  tessera_mpi_test(${mpi} saves_on_hosts 4 saves $<TARGET_FILE:mpi_plain> saves)
  tessera_on_hosts(${mpi} saves_on_hosts 2)
  tessera_mpi_test(${mpi} saves_on_one_host 4 saves $<TARGET_FILE:mpi_plain> saves)
  tessera_mpi_test(${mpi} journal 2 saves $<TARGET_FILE:mpi_plain> journal)
  tessera_on_hosts(${mpi} journal 2)
  tessera_mpi_test(${mpi} exits 4 killed $<TARGET_FILE:mpi_plain> exits)
  tessera_on_hosts(${mpi} exits 4)
  tessera_mpi_test(${mpi} exits_on_one_host 4 killed $<TARGET_FILE:mpi_plain> exits)
  tessera_mpi_test(${mpi} lengths 2 right $<TARGET_FILE:mpi_lengths>)
  tessera_mpi_test(${mpi} plain_alone 1 right $<TARGET_FILE:mpi_plain> works)
  tessera_mpi_test(${mpi} plain_vote 4 right $<TARGET_FILE:mpi_plain> works)
  tessera_on_hosts(${mpi} plain_vote 4 TESSERA_VOTE_FROM=2)
  tessera_mpi_test(${mpi} plain_vote_on_hosts 4 right $<TARGET_FILE:mpi_plain> works)
  tessera_on_hosts(${mpi} plain_vote_on_hosts 2 TESSERA_VOTE_FROM=2)
  tessera_mpi_test(${mpi} hosts_vote 7 right $<TARGET_FILE:mpi_plain> hosts)
  tessera_on_hosts(${mpi} hosts_vote 3 TESSERA_VOTE_FROM=2)
  tessera_mpi_test(${mpi} absent_vote 4 absent $<TARGET_FILE:mpi_plain> absent)
  tessera_on_hosts(${mpi} absent_vote 4 TESSERA_VOTE_FROM=2)
  # From 8 on what is said goes in rounds.
  foreach(case plain_rounds-9-9 plain_rounds_on_hosts-16-8)
    string(REGEX MATCH "^([a-z_]+)-([0-9]+)-([0-9]+)$" all ${case})
    set(hosts ${CMAKE_MATCH_3})
    tessera_mpi_test(${mpi} ${CMAKE_MATCH_1} ${CMAKE_MATCH_2} right $<TARGET_FILE:mpi_plain> works)
    tessera_on_hosts(${mpi} ${CMAKE_MATCH_1} ${hosts})
  endforeach()
  tessera_mpi_test(${mpi} absent_rounds 8 absent $<TARGET_FILE:mpi_plain> absent)
  tessera_on_hosts(${mpi} absent_rounds 8)
  # Ranks that come late, and wait, are not taken for the one that does not come.
  foreach(hosts 1 2)
    tessera_mpi_test(${mpi} absent_late_on_${hosts} 4 absent $<TARGET_FILE:mpi_plain> absent_late)
    tessera_on_hosts(${mpi} absent_late_on_${hosts} ${hosts})
  endforeach()
  tessera_mpi_test(${mpi} stands_still 4 absent $<TARGET_FILE:mpi_plain> stands_still)
  tessera_on_hosts(${mpi} stands_still 4)
  foreach(how late fails)
    tessera_mpi_test(${mpi} joins_${how} 3 right $<TARGET_FILE:mpi_plain> joins)
    set_property(TEST mpi.${mpi}_joins_${how} APPEND PROPERTY ENVIRONMENT TESSERA_TEST_JOIN=${how} TESSERA_TIMEOUT=20)
  endforeach()
  # Who comes when the others have given up learns of it; and what it sends then is not received.
  foreach(ranks 4 8)
    tessera_mpi_test(${mpi} comes_late_${ranks} ${ranks} right $<TARGET_FILE:mpi_plain> comes_late)
    tessera_on_hosts(${mpi} comes_late_${ranks} ${ranks})
  endforeach()
  tessera_mpi_test(${mpi} gives_up 2 right $<TARGET_FILE:mpi_plain> gives_up)
  tessera_on_hosts(${mpi} gives_up 2)
  tessera_mpi_test(${mpi} late_term 4 right $<TARGET_FILE:mpi_plain> late_term)
  tessera_on_hosts(${mpi} late_term 4 TESSERA_NETWORK=${mpi_tests}/direct.json)
  tessera_mpi_test(${mpi} many_messages 2 right $<TARGET_FILE:mpi_plain> many_messages)
  tessera_on_hosts(${mpi} many_messages 2)
  # Asked for, MPI_Abort() ends the job; else it is never called.
  tessera_mpi_test(${mpi} absent_aborts 4 aborts $<TARGET_FILE:mpi_own_calls_${mpi}> aborts)
  tessera_on_hosts(${mpi} absent_aborts 2 TESSERA_MPI_ABORT=1)
  tessera_mpi_test(${mpi} absent_mixed 4 absent $<TARGET_FILE:mpi_plain> absent_mixed)
  tessera_on_hosts(${mpi} absent_mixed 2)
  tessera_mpi_test(${mpi} absent_own_calls 4 absent $<TARGET_FILE:mpi_own_calls_${mpi}> absent)
  tessera_on_hosts(${mpi} absent_own_calls 2)
  tessera_mpi_test(${mpi} absent_late_vote 4 absent $<TARGET_FILE:mpi_plain> absent_late)
  tessera_on_hosts(${mpi} absent_late_vote 2 TESSERA_VOTE_FROM=2)
  tessera_mpi_test(${mpi} counted_rounds 9 right $<TARGET_FILE:mpi_counted_${mpi}> rounds)
  tessera_on_hosts(${mpi} counted_rounds 9)
  if(mpi STREQUAL openmpi)  # MPICH over TCP hangs in its end at times
    tessera_mpi_test(${mpi} counted_rounds_tcp 9 right $<TARGET_FILE:mpi_counted_${mpi}> rounds)
    tessera_on_hosts(${mpi} counted_rounds_tcp 9 OMPI_MCA_btl=tcp,self)
    tessera_mpi_test(${mpi} plain_tcp 4 right $<TARGET_FILE:mpi_plain> works)
    tessera_on_hosts(${mpi} plain_tcp 4 OMPI_MCA_btl=tcp,self)
    tessera_mpi_test(${mpi} hosts_tcp 4 right $<TARGET_FILE:mpi_plain> hosts)
    tessera_on_hosts(${mpi} hosts_tcp 2 OMPI_MCA_btl=tcp,self)
    foreach(hosts 2 7)
      tessera_mpi_test(${mpi} hosts_${hosts}_tcp 7 right $<TARGET_FILE:mpi_plain> hosts)
      tessera_on_hosts(${mpi} hosts_${hosts}_tcp ${hosts} OMPI_MCA_btl=tcp,self)
      tessera_mpi_test(${mpi} 7x${hosts}_tcp 7 passes
                       $<TARGET_FILE:test_collective> --gtest_filter=*mpi* --gtest_brief=1)
      tessera_on_hosts(${mpi} 7x${hosts}_tcp ${hosts} TESSERA_TEST_MPI=7 OMPI_MCA_btl=tcp,self)
    endforeach()
  endif()
  set(trusted _trusted)
  if(mpi STREQUAL mpich)  # its own gather of so much takes more than a minute
    set(trusted "")
  endif()
  tessera_mpi_test(${mpi} Huge 2 right $<TARGET_FILE:mpi_plain> huge${trusted})
  tessera_on_hosts(${mpi} Huge 2)
  tessera_mpi_test(${mpi} counted 4 right $<TARGET_FILE:mpi_counted_${mpi}>)
  tessera_on_hosts(${mpi} counted 4 TESSERA_VOTE_FROM=2)
  # Whether ranks share cores decides how a trusted gather waits.
  foreach(case apart-2 crowded-3)
    string(REGEX MATCH "^([a-z]+)-([0-9]+)$" all ${case})
    set(what ${CMAKE_MATCH_1})
    set(ranks ${CMAKE_MATCH_2})
    tessera_mpi_test(${mpi} counted_${what} ${ranks} right $<TARGET_FILE:mpi_counted_${mpi}> ${what})
    tessera_on_hosts(${mpi} counted_${what} ${ranks} TESSERA_VOTE_FROM=2)
  endforeach()
  foreach(what splits splits_whole)
    tessera_mpi_test(${mpi} counted_${what} 4 right $<TARGET_FILE:mpi_counted_${mpi}> ${what})
    tessera_on_hosts(${mpi} counted_${what} 4)
    tessera_mpi_test(${mpi} counted_${what}_on_hosts 4 right $<TARGET_FILE:mpi_counted_${mpi}> ${what})
    tessera_on_hosts(${mpi} counted_${what}_on_hosts 2)
    # MPI's own waiting takes the cores, and who is to answer within a second needs one.
    set_tests_properties(mpi.${mpi}_counted_${what} mpi.${mpi}_counted_${what}_on_hosts PROPERTIES PROCESSORS 16)
  endforeach()
  tessera_mpi_test(${mpi} counted_fails 4 right $<TARGET_FILE:mpi_counted_${mpi}> fails)
  tessera_on_hosts(${mpi} counted_fails 4)
  tessera_mpi_test(${mpi} counted_ragged 3 right $<TARGET_FILE:mpi_counted_${mpi}> ragged)
  tessera_on_hosts(${mpi} counted_ragged 3)
  tessera_mpi_test(${mpi} counted_sums 4 right $<TARGET_FILE:mpi_counted_${mpi}> sums)
  tessera_on_hosts(${mpi} counted_sums 4 TESSERA_VOTE_FROM=2 TESSERA_NETWORK=${mpi_tests}/dear_messages.json)
endforeach()

# On two hosts that are really apart. By node, ranks of a host do not follow each other.
if(TESSERA_OPENMPI_CXX AND TESSERA_OPENMPI_RUN)
  set(TESSERA_TWO_HOSTS_RUN ${mpi_tests}/two_hosts)
  tessera_mpi_test(two_hosts plain 4 right -N 2 $<TARGET_FILE:mpi_plain> works)
  tessera_mpi_test(two_hosts least 4 right -N 2 $<TARGET_FILE:mpi_plain> hosts)
  tessera_mpi_test(two_hosts conformance 6 passes
                   --map-by node $<TARGET_FILE:test_collective> --gtest_filter=*mpi* --gtest_brief=1)
  foreach(what absent killed leaves)
    tessera_mpi_test(two_hosts ${what} 4 ${what} -N 2 $<TARGET_FILE:mpi_plain> ${what})
  endforeach()
  foreach(name plain least conformance absent killed leaves)
    set_tests_properties(mpi.two_hosts_${name} PROPERTIES SKIP_RETURN_CODE 77
      ENVIRONMENT "LAUNCHER=${TESSERA_OPENMPI_RUN};TESSERA_TEST_HOSTS=2")
  endforeach()
  set_property(TEST mpi.two_hosts_conformance APPEND PROPERTY ENVIRONMENT TESSERA_TEST_MPI=6)
endif()

# What mpirun is given, by one that only says so.
if(TARGET tessera_cli)
  add_test(NAME mpi.run_of_many COMMAND sh -c [[d=$(mktemp -d) && printf '#!/bin/sh\necho Open MPI "$@"\n' >"$d/mpirun" &&
    chmod +x "$d/mpirun" && PATH=$d:$PATH "$0" run --transport mpi --timeout 7 -n 5000 -- true; rm -r "$d"]]
    $<TARGET_FILE:tessera_cli>)
  set_tests_properties(mpi.run_of_many PROPERTIES LABELS mpi TIMEOUT ${TESSERA_TEST_TIMEOUT}
    PASS_REGULAR_EXPRESSION "-n 5000 -x TESSERA_TIMEOUT true")
endif()

# As srun --mpi=pmix starts a rank of Open MPI's.
if(TESSERA_OPENMPI_CXX AND TESSERA_OPENMPI_RUN)
  tessera_mpi_test(openmpi pmix 3 right env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE $<TARGET_FILE:mpi_plain> works)
endif()

# As srun does without --mpi.
add_test(NAME mpi.srun_without_mpi COMMAND sh -c "$<TARGET_FILE:mpi_plain> works 2>&1 || true")
set_tests_properties(mpi.srun_without_mpi PROPERTIES LABELS mpi TIMEOUT ${TESSERA_TEST_TIMEOUT}
  ENVIRONMENT SLURM_STEP_NUM_TASKS=2 PASS_REGULAR_EXPRESSION "srun has started 2 processes")

# What `tessera run` hands over to is found as `mpirun`; the variables are Open MPI's.
if(TARGET tessera_cli)
  foreach(mpi openmpi mpich)
    string(TOUPPER ${mpi} MPI)
    if(NOT TESSERA_${MPI}_CXX OR NOT TESSERA_${MPI}_RUN)
      continue()
    endif()
    add_test(NAME mpi.run_hands_over_to_${mpi} COMMAND sh -c [[d=$(mktemp -d) && printf '#!/bin/sh\nexec %s "$@"\n' "$1" >"$d/mpirun" &&
      chmod +x "$d/mpirun" && PATH=$d:$PATH "$0" run --transport mpi -n 2 -- "$2" works; rm -r "$d"]]
      $<TARGET_FILE:tessera_cli> ${TESSERA_${MPI}_RUN} $<TARGET_FILE:mpi_plain>)
    set_tests_properties(mpi.run_hands_over_to_${mpi} PROPERTIES LABELS mpi TIMEOUT ${TESSERA_TEST_TIMEOUT} RUN_SERIAL ON
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1"
      PASS_REGULAR_EXPRESSION "rank 1 of 2 is right")
  endforeach()
  foreach(mpi openmpi mpich)
    if(TARGET bench_player_${mpi})
      add_dependencies(mpi_plain bench_player_${mpi})  # players are no part of `all`
      add_test(NAME mpi.bench_${mpi}
               COMMAND tessera_cli bench all_gather --transport ${mpi} --ranks 3 --sizes 1KiB,64KiB --dims 0,1
                       --against ${mpi}-raw,${mpi}-least --seconds 0.05 --output recycled,trusted)
      set_tests_properties(mpi.bench_${mpi} PROPERTIES LABELS mpi TIMEOUT ${TESSERA_TEST_TIMEOUT} RUN_SERIAL ON
                           ENVIRONMENT TESSERA_HOSTS=3 FAIL_REGULAR_EXPRESSION WRONG
                           PASS_REGULAR_EXPRESSION "${mpi}-raw.*direct, 1 round: .*spread")
    endif()
  endforeach()
endif()
