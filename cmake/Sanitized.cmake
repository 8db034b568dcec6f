# sigma_sanitized_twins(LIBRARY...)
#
# For each library a twin LIBRARY_san of the same sources with the address and undefined-behaviour
# sanitizers, which the unit and fuzz tests link (sigma_test): what they run is checked, while the
# programs are built as users get them. Built only where a test needs it. Call it when the libraries
# are complete; links between libraries become links between their twins.
option(SIGMA_SANITIZE "sanitizers in unit and fuzz tests" ON)  # off where building twice is too much (tests/debian13)
set(SIGMA_SANITIZERS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)

function(sigma_sanitized_twins)
  if(NOT SIGMA_SANITIZE)
    return()
  endif()
  foreach(library ${ARGN})
    get_target_property(sources ${library} SOURCES)
    get_target_property(folder ${library} SOURCE_DIR)
    list(TRANSFORM sources PREPEND ${folder}/ REGEX "^[^/]")
    add_library(${library}_san STATIC EXCLUDE_FROM_ALL ${sources})
    # GCC 12 takes what the sanitizers add for uses of uninitialised members.
    target_compile_options(${library}_san PRIVATE ${SIGMA_SANITIZERS} -O1 -g1 -Wno-maybe-uninitialized)
    target_include_directories(${library}_san PRIVATE $<TARGET_PROPERTY:${library},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${library}_san PRIVATE $<TARGET_PROPERTY:${library},COMPILE_DEFINITIONS>)
    get_target_property(links ${library} LINK_LIBRARIES)
    sigma_twins_of(twins ${links})
    target_link_libraries(${library}_san PUBLIC ${twins})
  endforeach()
endfunction()

# Each library's twin where there is one, else itself.
function(sigma_twins_of RESULT)
  set(twins)
  foreach(library ${ARGN})
    if(TARGET ${library}_san)
      list(APPEND twins ${library}_san)
    else()
      list(APPEND twins ${library})
    endif()
  endforeach()
  set(${RESULT} ${twins} PARENT_SCOPE)
endfunction()
