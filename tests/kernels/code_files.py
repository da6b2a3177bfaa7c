"""Small files with GPU code in them, made by the pinned compiler and by hand, for the tests that read such files."""

import re
import struct
import subprocess
import zlib

import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain import choose_compiler

# A kernel with LDS, arguments of several sizes, a loop, registers in VGPRs; another that needs scratch; an empty one.
SOURCE = """\
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 192)))
void scale(float* __restrict__ out, const float* __restrict__ in, float factor, int n, char c) {
  __shared__ float tile[259];
  unsigned t = __builtin_amdgcn_workitem_id_x(), b = __builtin_amdgcn_workgroup_id_x();
  tile[t] = in[b * 192 + t];
  __builtin_amdgcn_s_barrier();
  float s = c;
  for (int i = 0; i < n; i++) s += tile[(t + i) & 255] * factor;
  out[b * 192 + t] = s;
}
extern "C" __global__ void many(float* p, int k) {
  float a[41];
  for (int i = 0; i < 41; i++) a[i] = p[i * 64 + k];
  for (int j = 0; j < k; j++) a[j % 41] += a[(j + 7) % 41] * p[j];
  for (int i = 0; i < 41; i++) p[i] = a[i];
}
extern "C" __global__ void empty() {}
"""
HIP = ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc", "-O3")


def pinned():
    """Return the compiler, or skip."""
    try:
        return choose_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


def start(*command, folder):
    """Run a command of a compiler."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def compile_text(driver, linker, folder, target, *options):
    """Return the code object of `SOURCE`, and its assembly text."""
    name = re.sub(r"\W", "_", f"{target}{''.join(options)}")
    (folder / "k.hip").write_text(SOURCE)
    start(*driver, *HIP, f"--offload-arch={target}", *options, "-S", "k.hip", "-o", f"{name}.s", folder=folder)
    data = assemble(driver, linker, folder, target, name, *(one for one in options if one.startswith("-m")))
    return data, (folder / f"{name}.s").read_text()


def assemble(driver, linker, folder, target, name, *options):
    """Assemble and link NAME.s."""
    amdgpu = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", *options)
    start(*driver, *amdgpu, "-c", "-x", "assembler", f"{name}.s", "-o", f"{name}.o", folder=folder)
    start(*linker, "-shared", f"{name}.o", "-o", f"{name}.hsaco", folder=folder)
    return (folder / f"{name}.hsaco").read_bytes()


def bundle(entries, align=4096):
    """Return an offload bundle of {entry name: content}; the host's entry is empty, as clang makes it."""
    entries = {"host-x86_64-unknown-linux-gnu-": b"", **entries}
    at = 32 + sum(24 + len(name) for name in entries)
    table, content = struct.pack("<Q", len(entries)), b""
    for name, data in entries.items():
        at += -at % align
        table += struct.pack("<QQQ", at, len(data), len(name)) + name.encode()
        content = content.ljust(at - 32 - sum(24 + len(each) for each in entries), b"\0") + data
        at += len(data)
    return b"__CLANG_OFFLOAD_BUNDLE__" + table + content


def compressed(data, version, *, method=0, content=None, size=None):
    """Return a compressed bundle; ``size`` and ``content`` are what its header says and what is in it if not true."""
    content = zlib.compress(data) if content is None else content
    size = len(data) if size is None else size
    fields = {1: "<4sHHIQ", 2: "<4sHHIIQ", 3: "<4sHHQQQ"}[version]
    whole = () if version == 1 else (struct.calcsize(fields) + len(content),)
    return struct.pack(fields, b"CCOB", version, method, *whole, size, 0x1234) + content


def host_object(folder, content, section=".hip_fatbin"):
    """Return an object file of x86-64 with a section of this content."""
    compiler = pinned()
    (folder / "fat.bin").write_bytes(content)
    (folder / "host.s").write_text(f'.section {section},"a",@progbits\n.p2align 12\n.incbin "fat.bin"\n')
    start(
        *compiler.argv, "-target", "x86_64-linux-gnu", "-c", "-x", "assembler", "host.s", "-o", "host.o", folder=folder
    )
    return (folder / "host.o").read_bytes()


def archive(members):
    """Return a static library in GNU's form: long names in a table of their own."""
    names, parts = b"", []
    for name, data in members.items():
        shown = f"{name}/".encode()
        if len(shown) > 16:
            shown, names = f"/{len(names)}".encode(), names + shown + b"\n"
        parts.append((shown, data))
    text = b"!<arch>\n"
    for name, data in [(b"//", names), *parts] if names else parts:
        text += (
            b"%-16s%-32s%-10d`\n" % (name, b"0           0     0     644", len(data)) + data + b"\n" * (len(data) % 2)
        )
    return text


def elf_of(sections, *, count=None, flags=0x41, abi=3):
    """Return a code object of sections: (type, link, content) or (type, link, content, offset, size)."""
    at, contents, table = 64, b"", b""
    for kind, link, content, *place in sections:
        offset, size = place or (at, len(content))
        table += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, 0)
        contents += content
        at += len(content)
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x40" + bytes([abi])
    struct.pack_into("<HH", header, 16, 3, 224)
    struct.pack_into("<Q", header, 40, at)
    struct.pack_into("<I", header, 48, flags)
    struct.pack_into("<HHH", header, 58, 64, len(sections) if count is None else count, 0)
    return bytes(header) + contents + table
