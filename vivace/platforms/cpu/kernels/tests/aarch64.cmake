# Cross-compiling for aarch64 with Debian's g++-aarch64-linux-gnu; ctest runs under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(QEMU NAMES qemu-aarch64-static qemu-aarch64)
set(CMAKE_CROSSCOMPILING_EMULATOR ${QEMU} -L /usr/aarch64-linux-gnu)
