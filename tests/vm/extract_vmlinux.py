#!/usr/bin/env python3
"""extract_vmlinux.py BZIMAGE OUT: write the ELF kernel that a bzImage carries.

QEMU boots an ELF kernel directly (PVH), which spares the emulator the kernel's own
decompression: seconds at each boot. Offsets: Documentation/arch/x86/boot.rst.
"""
import lzma
import struct
import subprocess
import sys
import zlib

SETUP_SECTS, PAYLOAD_OFFSET, PAYLOAD_LENGTH = 0x1F1, 0x248, 0x24C


def payload_of(image: bytes) -> bytes:
    """The compressed kernel inside a bzImage."""
    setup_sectors = image[SETUP_SECTS] or 4
    offset, = struct.unpack_from("<I", image, PAYLOAD_OFFSET)
    length, = struct.unpack_from("<I", image, PAYLOAD_LENGTH)
    start = (setup_sectors + 1) * 512 + offset
    return image[start:start + length]


def decompress(payload: bytes) -> bytes:
    """Undo the compression that the payload's magic names."""
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        # the last 4 bytes are the uncompressed size, which is not part of the zstd frame
        return subprocess.run(["zstd", "-dc"], input=payload[:-4], check=True,
                              stdout=subprocess.PIPE).stdout
    sys.exit(f"extract_vmlinux: unknown compression {payload[:4].hex()}")


def main() -> None:
    source, target = sys.argv[1:3]
    with open(source, "rb") as file:
        kernel = decompress(payload_of(file.read()))
    if not kernel.startswith(b"\x7fELF"):
        sys.exit("extract_vmlinux: the payload is no ELF file")
    with open(target, "wb") as file:
        file.write(kernel)


if __name__ == "__main__":
    main()
