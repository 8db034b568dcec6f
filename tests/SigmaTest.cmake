# sigma_test(NAME SOURCES ... LIBRARIES ... LABEL unit|native|... [TIMEOUT s] [SERIAL])
# One Catch2 binary; each of its TEST_CASEs becomes a CTest test. Time-outs are generous: machines
# may be loaded, and no test asserts on time. Unit and fuzz tests run under the address and
# undefined-behaviour sanitizers, the libraries that they link included.
set(SIGMA_TEST_DIR ${CMAKE_CURRENT_LIST_DIR})

add_library(sigma_catch_main STATIC ${SIGMA_TEST_DIR}/catch_main.cpp)
target_include_directories(sigma_catch_main PUBLIC ${SIGMA_TEST_DIR})
target_compile_definitions(sigma_catch_main PUBLIC SIGMA_CATCH2_MAJOR=${SIGMA_CATCH2_MAJOR})
target_link_libraries(sigma_catch_main PUBLIC Catch2::Catch2 sigma_options)

function(sigma_test NAME)
  cmake_parse_arguments(ARG "SERIAL" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(SIGMA_SANITIZE AND ARG_LABEL MATCHES "^(unit|fuzz)$")
    sigma_twins_of(ARG_LIBRARIES ${ARG_LIBRARIES})
    # Not optimised, unlike the libraries: compiling assertions took 1.7 times as long, and running
    # them takes no time.
    target_compile_options(${NAME} PRIVATE ${SIGMA_SANITIZERS} -O0 -g1)
    target_link_options(${NAME} PRIVATE ${SIGMA_SANITIZERS})
  endif()
  target_link_libraries(${NAME} PRIVATE sigma_catch_main ${ARG_LIBRARIES})
  set(properties LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  catch_discover_tests(${NAME} TEST_PREFIX "${NAME}." PROPERTIES ${properties})
endfunction()
