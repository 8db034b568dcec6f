# Everything comes from the distribution; scripts/setup installs it.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

function(sigma_pkg NAME MODULE)
  pkg_check_modules(${NAME} QUIET IMPORTED_TARGET ${MODULE})
  if(NOT ${NAME}_FOUND)
    message(FATAL_ERROR "sigmatrace: ${MODULE} not found. Run scripts/setup.")
  endif()
  add_library(sigma::${NAME} INTERFACE IMPORTED)
  target_link_libraries(sigma::${NAME} INTERFACE PkgConfig::${NAME})
endfunction()

sigma_pkg(libbpf "libbpf>=1.1")
sigma_pkg(libelf libelf)
sigma_pkg(lzma liblzma)
sigma_pkg(capstone capstone)
sigma_pkg(ibverbs libibverbs)

find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

# Catch2 2 and 3 both serve: tests/catch.h includes the right header.
find_package(Catch2 3 QUIET)
if(Catch2_FOUND)
  set(SIGMA_CATCH2_MAJOR 3)
else()
  find_package(Catch2 2 REQUIRED)
  set(SIGMA_CATCH2_MAJOR 2)
endif()
include(Catch)
