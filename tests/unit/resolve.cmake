# test_resolve, and the libraries that it resolves: a libibverbs and a provider of its own in many
# builds. Of each provider there are two: NAME.full.so, whose symbol table is the truth, and NAME.so,
# stripped, which is what the resolver gets to see.
set(RESOLVE_DATA ${CMAKE_CURRENT_LIST_DIR}/../data/resolve)
set(RESOLVE_BUILD ${CMAKE_CURRENT_BINARY_DIR}/resolve)
file(MAKE_DIRECTORY ${RESOLVE_BUILD})
find_program(RESOLVE_GCC NAMES gcc REQUIRED)
find_program(RESOLVE_CLANG NAMES clang clang-19 clang-18 clang-14 REQUIRED)
find_program(RESOLVE_STRIP NAMES strip REQUIRED)
set(RESOLVE_FLAGS -shared -fPIC -g0 -w)

add_custom_command(
  OUTPUT ${RESOLVE_BUILD}/libibverbs.so.1
  COMMAND ${RESOLVE_GCC} ${RESOLVE_FLAGS} -O2 -Wl,--build-id -Wl,-soname,libibverbs.so.1
          -Wl,--version-script=${RESOLVE_DATA}/ibverbs.map -o libibverbs.so.1 ${RESOLVE_DATA}/ibverbs.c
  DEPENDS ${RESOLVE_DATA}/ibverbs.c ${RESOLVE_DATA}/ibverbs.map ${RESOLVE_DATA}/ops.h
  WORKING_DIRECTORY ${RESOLVE_BUILD} VERBATIM)
add_custom_command(
  OUTPUT ${RESOLVE_BUILD}/sites.so
  COMMAND ${RESOLVE_GCC} -shared -nostdlib -o sites.so ${RESOLVE_DATA}/sites.S
  DEPENDS ${RESOLVE_DATA}/sites.S WORKING_DIRECTORY ${RESOLVE_BUILD} VERBATIM)
set(RESOLVE_FILES ${RESOLVE_BUILD}/libibverbs.so.1 ${RESOLVE_BUILD}/sites.so)

function(resolve_provider NAME COMPILER)
  add_custom_command(
    OUTPUT ${RESOLVE_BUILD}/${NAME}.full.so ${RESOLVE_BUILD}/${NAME}.so
    COMMAND ${COMPILER} ${RESOLVE_FLAGS} -Wl,--build-id ${ARGN} -o ${NAME}.full.so
            ${RESOLVE_DATA}/provider.c -L. -l:libibverbs.so.1
    COMMAND ${RESOLVE_STRIP} -o ${NAME}.so ${NAME}.full.so
    DEPENDS ${RESOLVE_DATA}/provider.c ${RESOLVE_DATA}/ops.h ${RESOLVE_BUILD}/libibverbs.so.1
    WORKING_DIRECTORY ${RESOLVE_BUILD} VERBATIM)
  set(RESOLVE_FILES ${RESOLVE_FILES} ${RESOLVE_BUILD}/${NAME}.so PARENT_SCOPE)
  set(RESOLVE_PROVIDERS ${RESOLVE_PROVIDERS} ${NAME} PARENT_SCOPE)
endfunction()
resolve_provider(gcc_o0 ${RESOLVE_GCC} -O0)
resolve_provider(gcc_o2 ${RESOLVE_GCC} -O2)
resolve_provider(gcc_os ${RESOLVE_GCC} -Os)
resolve_provider(gcc_o3_avx ${RESOLVE_GCC} -O3 -march=x86-64-v3)
resolve_provider(gcc_lto ${RESOLVE_GCC} -O2 -flto)
resolve_provider(gcc_cet ${RESOLVE_GCC} -O2 -fcf-protection=full -Wl,-z,ibtplt)
resolve_provider(gcc_lazy ${RESOLVE_GCC} -O2 -Wl,-z,lazy)
resolve_provider(gcc_noplt ${RESOLVE_GCC} -O2 -fno-plt -Wl,-z,now)
resolve_provider(gcc_relr ${RESOLVE_GCC} -O2 -Wl,-z,pack-relative-relocs)
resolve_provider(gcc_sysv ${RESOLVE_GCC} -O2 -Wl,--hash-style=sysv)
resolve_provider(gcc_gold ${RESOLVE_GCC} -O2 -fuse-ld=gold)
resolve_provider(gcc_embedded ${RESOLVE_GCC} -O2 -DEMBEDDED_TABLE)
resolve_provider(gcc_poll_table ${RESOLVE_GCC} -O2 -DPOLL_TABLE)
resolve_provider(clang_poll_table ${RESOLVE_CLANG} -O2 -DPOLL_TABLE)
resolve_provider(clang_o0 ${RESOLVE_CLANG} -O0)
resolve_provider(clang_o2 ${RESOLVE_CLANG} -O2)
resolve_provider(clang_lld ${RESOLVE_CLANG} -O2 -fuse-ld=lld -Wl,--pack-dyn-relocs=relr)
resolve_provider(clang_lto ${RESOLVE_CLANG} -O2 -flto -fuse-ld=lld)
add_custom_target(resolve_fixtures DEPENDS ${RESOLVE_FILES})

set(RESOLVE_TESTS support archive elf hostile installed live order providers sites)
list(TRANSFORM RESOLVE_TESTS REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/resolve_\\1.cpp")
sigma_test(test_resolve LABEL unit TIMEOUT 300 SOURCES ${RESOLVE_TESTS}
  LIBRARIES sigma_resolve fmt::fmt)
add_dependencies(test_resolve resolve_fixtures)
list(JOIN RESOLVE_PROVIDERS "," RESOLVE_PROVIDER_LIST)
target_compile_definitions(test_resolve PRIVATE
  RESOLVE_FIXTURES="${RESOLVE_BUILD}" RESOLVE_PROVIDERS="${RESOLVE_PROVIDER_LIST}"
  RESOLVE_LIBDIR="/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
