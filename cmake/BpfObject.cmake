# bpf_object(NAME SOURCES a.bpf.c b.bpf.c HEADERS records.h ...)
#
# Compiles each source for the BPF target, links them into one object with `bpftool gen object`,
# and generates NAME.skel.h. Gives the interface target NAME_skel: linking it brings the include
# path and libbpf. No vmlinux.h: the programs declare the few kernel structures they use, so the
# build machine needs no BTF.
set(SIGMA_BPF_INCLUDE ${CMAKE_CURRENT_LIST_DIR}/..)
find_program(BPF_CLANG NAMES clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 REQUIRED)
find_program(BPFTOOL NAMES bpftool PATHS /usr/sbin /sbin REQUIRED)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64")
  set(BPF_ARCH x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(BPF_ARCH arm64)
else()
  message(FATAL_ERROR "sigmatrace: no BPF register layout for ${CMAKE_SYSTEM_PROCESSOR}")
endif()

function(bpf_object NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS" ${ARGN})
  set(objects)
  foreach(source ${ARG_SOURCES})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.${stem}.bpf.o)
    # -mcpu=v3: 32-bit atomics need it. -g: BTF for maps, CO-RE and line information.
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${BPF_CLANG} -g -O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_${BPF_ARCH}
              -Wall -Wextra -Wno-unused-parameter -Wno-address-of-packed-member
              -I${SIGMA_BPF_INCLUDE} -I/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${ARG_HEADERS}
      COMMENT "BPF ${source}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(linked ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.bpf.o)
  set(skeleton ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.skel.h)
  add_custom_command(OUTPUT ${linked} COMMAND ${BPFTOOL} gen object ${linked} ${objects}
                     DEPENDS ${objects} COMMENT "BPF link ${NAME}" VERBATIM)
  add_custom_command(OUTPUT ${skeleton}
                     COMMAND sh -c "'${BPFTOOL}' gen skeleton '${linked}' name ${NAME} > '${skeleton}.tmp' && mv '${skeleton}.tmp' '${skeleton}'"
                     DEPENDS ${linked} COMMENT "BPF skeleton ${NAME}" VERBATIM)
  add_custom_target(${NAME}_skeleton DEPENDS ${skeleton})
  add_library(${NAME}_skel INTERFACE)
  add_dependencies(${NAME}_skel ${NAME}_skeleton)
  target_include_directories(${NAME}_skel SYSTEM INTERFACE ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(${NAME}_skel INTERFACE sigma::libbpf)
endfunction()
