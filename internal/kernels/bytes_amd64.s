//go:build !noasm

#include "textflag.h"

// Go's assembler has no instructions of AMX: they are written as bytes, with what
// objdump -d prints for them.

// Palette 1: eight tiles of 16 rows of 64 bytes.
DATA tileConfig<>+0(SB)/8, $1
DATA tileConfig<>+8(SB)/8, $0
DATA tileConfig<>+16(SB)/8, $0x0040004000400040
DATA tileConfig<>+24(SB)/8, $0x0040004000400040
DATA tileConfig<>+32(SB)/8, $0
DATA tileConfig<>+40(SB)/8, $0
DATA tileConfig<>+48(SB)/8, $0x1010101010101010
DATA tileConfig<>+56(SB)/8, $0
GLOBL tileConfig<>(SB), RODATA|NOPTR, $64

// func bytesAMX(t *bytesTask)
// Tiles 0 to 3 are sums: of the first and of the last 16 rows of A with the first and
// the last 16 rows of B. Go does not preempt a function in assembly: no tile is in use
// outside of it.
TEXT ·bytesAMX(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), R12
	LEAQ tileConfig<>(SB), AX
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00 // ldtilecfg (%rax)
	MOVQ 8(R12), BX  // b
	MOVQ 16(R12), R15 // c
	MOVQ 24(R12), R13 // ldc
	MOVQ 32(R12), R8  // steps
	SHLQ $10, R8      // bytes of 16 rows
	MOVQ 56(R12), R11 // columns
	MOVQ $64, DX      // bytes of a tile's row

block:
	MOVQ 0(R12), AX
	LEAQ (AX)(R8*1), SI
	LEAQ (BX)(R8*1), DI
	MOVQ 32(R12), CX
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xc0 // tilezero %tmm0
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xc8 // tilezero %tmm1
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xd0 // tilezero %tmm2
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xd8 // tilezero %tmm3

step:
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x34; BYTE $0x13 // tileloadd (%rbx,%rdx,1),%tmm6
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x24; BYTE $0x10 // tileloadd (%rax,%rdx,1),%tmm4
	BYTE $0xc4; BYTE $0xe2; BYTE $0x4b; BYTE $0x5e; BYTE $0xc4             // tdpbssd %tmm6,%tmm4,%tmm0
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x2c; BYTE $0x16 // tileloadd (%rsi,%rdx,1),%tmm5
	BYTE $0xc4; BYTE $0xe2; BYTE $0x4b; BYTE $0x5e; BYTE $0xd5             // tdpbssd %tmm6,%tmm5,%tmm2
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x3c; BYTE $0x17 // tileloadd (%rdi,%rdx,1),%tmm7
	BYTE $0xc4; BYTE $0xe2; BYTE $0x43; BYTE $0x5e; BYTE $0xcc             // tdpbssd %tmm7,%tmm4,%tmm1
	BYTE $0xc4; BYTE $0xe2; BYTE $0x43; BYTE $0x5e; BYTE $0xdd             // tdpbssd %tmm7,%tmm5,%tmm3
	ADDQ $1024, AX
	ADDQ $1024, SI
	ADDQ $1024, BX
	ADDQ $1024, DI
	DECQ CX
	JNZ  step

	MOVQ DI, BX // the next 32 rows of B
	MOVQ 64(R12), CX // sums
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x04; BYTE $0x11 // tilestored %tmm0,(%rcx,%rdx,1)
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x8c; BYTE $0x11; BYTE $0x00; BYTE $0x04; BYTE $0x00; BYTE $0x00 // tilestored %tmm1,0x400(%rcx,%rdx,1)
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x94; BYTE $0x11; BYTE $0x00; BYTE $0x08; BYTE $0x00; BYTE $0x00 // tilestored %tmm2,0x800(%rcx,%rdx,1)
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x9c; BYTE $0x11; BYTE $0x00; BYTE $0x0c; BYTE $0x00; BYTE $0x00 // tilestored %tmm3,0xc00(%rcx,%rdx,1)

	// C = sum·(scale of the row)·(scale of the column) + reach·error
	VMOVUPS (R11), Z0
	VMOVUPS 64(R11), Z1
	VMOVUPS 128(R11), Z2
	VMOVUPS 192(R11), Z3
	ADDQ    $256, R11
	MOVQ    48(R12), R10 // rows
	MOVQ    R15, R9
	ADDQ    $128, R15
	MOVQ    $2, SI

half:
	MOVQ $16, DI

row:
	VCVTDQ2PS        (CX), Z4
	VCVTDQ2PS        1024(CX), Z5
	VMULPS           Z0, Z4, Z4
	VMULPS           Z1, Z5, Z5
	VMULPS.BCST      4(R10), Z2, Z6
	VMULPS.BCST      4(R10), Z3, Z7
	VFMADD231PS.BCST (R10), Z4, Z6
	VFMADD231PS.BCST (R10), Z5, Z7
	VMOVUPS          Z6, (R9)
	VMOVUPS          Z7, 64(R9)
	ADDQ             $64, CX
	ADDQ             $8, R10
	ADDQ             R13, R9
	DECQ             DI
	JNZ              row
	ADDQ             $1024, CX
	DECQ             SI
	JNZ              half

	DECQ 40(R12)
	JNZ  block
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0 // tilerelease
	VZEROUPPER
	RET
