# Python3_EXECUTABLE: the interpreter itself. What PATH names may be a version manager's script,
# which starts it half a second of CPU later: much, for the hundreds of tests and programs that are
# Python. So find_package is told, and the interpreter's folder comes first in the PATH of what
# ctest runs.
if(NOT Python3_EXECUTABLE)
  find_program(SIGMA_PYTHON3 python3 REQUIRED)
  execute_process(COMMAND ${SIGMA_PYTHON3} -c "import sys; print(sys.executable)"
                  OUTPUT_VARIABLE interpreter OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(Python3_EXECUTABLE ${interpreter} CACHE FILEPATH "The Python 3 interpreter itself")
endif()
get_filename_component(folder ${Python3_EXECUTABLE} DIRECTORY)
file(WRITE ${CMAKE_BINARY_DIR}/tests/path.cmake "set(ENV{PATH} \"${folder}:\$ENV{PATH}\")\n")
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/tests/path.cmake)
