#include "textflag.h"

// Offsets in folding.
#define BY2048 0
#define BY1536 64
#define BY1024 128
#define BY512 192
#define LANES 256
#define BY128 320
#define BARRETT 336
#define BY64 352

// FOLD moves the 64 bytes of acc on by what k says and adds the bytes at from.
#define FOLD(k, acc, tmp, from) \
	VPCLMULQDQ $0x11, k, acc, tmp     \
	VPCLMULQDQ $0x00, k, acc, acc     \
	VPTERNLOGD $0x96, from, tmp, acc

// COMBINE adds the accumulators Z1 to Z4 up in Z3, and leaves the factors for 64 bytes in Z0.
#define COMBINE \
	VMOVDQU64  BY1536(DX), Z9      \
	VMOVDQU64  BY1024(DX), Z10     \
	VMOVDQU64  BY512(DX), Z0       \
	FOLD(Z9, Z1, Z5, Z4)           \
	VPCLMULQDQ $0x11, Z10, Z2, Z6  \
	VPCLMULQDQ $0x00, Z10, Z2, Z2  \
	FOLD(Z0, Z3, Z7, Z1)           \
	VPTERNLOGD $0x96, Z6, Z2, Z3

// NARROW folds Z3 to 16 bytes in X1, and leaves the factors for as many in X0. The
// first three 16 bytes move to the last; the factors of the last are 0.
#define NARROW \
	VMOVDQU64     LANES(DX), Z0       \
	VEXTRACTI32X4 $3, Z3, X1          \
	VPCLMULQDQ    $0x11, Z0, Z3, Z5   \
	VPCLMULQDQ    $0x00, Z0, Z3, Z3   \
	VPXORQ        Z5, Z3, Z3          \
	VEXTRACTI64X4 $1, Z3, Y5          \
	VPXOR         Y5, Y3, Y3          \
	VEXTRACTI128  $1, Y3, X5          \
	VPXOR         X5, X3, X3          \
	VPXOR         X3, X1, X1          \
	VMOVDQU       BY128(DX), X0       \
	VZEROUPPER

// REDUCE makes the register in AX of the 16 bytes in X1: 128 bits to 64, 64 to 32 and
// zeros, and Barrett's reduction of those.
#define REDUCE \
	PCMPEQL   X3, X3              \
	PSRLQ     $32, X3             \
	PCLMULQDQ $0x01, X1, X0       \
	PSRLDQ    $8, X1              \
	PXOR      X0, X1              \
	MOVQ      BY64(DX), X0        \
	MOVOA     X1, X2              \
	PSRLDQ    $4, X2              \
	PAND      X3, X1              \
	PCLMULQDQ $0x00, X0, X1       \
	PXOR      X2, X1              \
	MOVOU     BARRETT(DX), X0     \
	MOVOA     X1, X2              \
	PAND      X3, X1              \
	PCLMULQDQ $0x10, X0, X1       \
	PAND      X3, X1              \
	PCLMULQDQ $0x00, X0, X1       \
	PXOR      X2, X1              \
	PEXTRD    $1, X1, AX

// COPY is FOLD of 64 bytes that are copied on the way.
#define COPY(k, acc, tmp, from, to) \
	VMOVDQU64 from, Z9         \
	VMOVDQU64 Z9, to           \
	FOLD(k, acc, tmp, Z9)

// func fold(register uint32, p []byte, k *folding) uint32
TEXT ·fold(SB), NOSPLIT, $0-44
	MOVL register+0(FP), X5
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ k+32(FP), DX

	// Four accumulators of 64 bytes do not wait for each other.
	VMOVDQU64 (SI), Z1
	VMOVDQU64 64(SI), Z2
	VMOVDQU64 128(SI), Z3
	VMOVDQU64 192(SI), Z4
	VPXORQ    Z5, Z1, Z1
	ADDQ      $256, SI
	SUBQ      $256, CX
	CMPQ      CX, $256
	JB        combine
	VMOVDQU64 BY2048(DX), Z0

by256bytes:
	FOLD(Z0, Z1, Z5, (SI))
	FOLD(Z0, Z2, Z6, 64(SI))
	FOLD(Z0, Z3, Z7, 128(SI))
	FOLD(Z0, Z4, Z8, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JAE  by256bytes

combine:
	COMBINE
	CMPQ CX, $64
	JB   lanes

by64bytes:
	FOLD(Z0, Z3, Z5, (SI))
	ADDQ $64, SI
	SUBQ $64, CX
	CMPQ CX, $64
	JAE  by64bytes

lanes:
	NARROW
	CMPQ CX, $16
	JB   reduce

by16bytes:
	MOVOU     (SI), X2
	MOVOA     X1, X5
	PCLMULQDQ $0x00, X0, X1
	PCLMULQDQ $0x11, X0, X5
	PXOR      X2, X1
	PXOR      X5, X1
	ADDQ      $16, SI
	SUBQ      $16, CX
	CMPQ      CX, $16
	JAE       by16bytes

reduce:
	REDUCE
	MOVL AX, ret+40(FP)
	RET

// func foldCopy(register uint32, to, p []byte, k *folding) uint32
TEXT ·foldCopy(SB), NOSPLIT, $0-68
	MOVL register+0(FP), X5
	MOVQ to_base+8(FP), DI
	MOVQ p_base+32(FP), SI
	MOVQ p_len+40(FP), CX
	MOVQ k+56(FP), DX

	VMOVDQU64 (SI), Z1
	VMOVDQU64 64(SI), Z2
	VMOVDQU64 128(SI), Z3
	VMOVDQU64 192(SI), Z4
	VMOVDQU64 Z1, (DI)
	VMOVDQU64 Z2, 64(DI)
	VMOVDQU64 Z3, 128(DI)
	VMOVDQU64 Z4, 192(DI)
	VPXORQ    Z5, Z1, Z1
	VMOVDQU64 BY2048(DX), Z0
	SUBQ      $256, CX
	JZ        combine

by256bytes:
	ADDQ $256, SI
	ADDQ $256, DI
	COPY(Z0, Z1, Z5, (SI), (DI))
	COPY(Z0, Z2, Z6, 64(SI), 64(DI))
	COPY(Z0, Z3, Z7, 128(SI), 128(DI))
	COPY(Z0, Z4, Z8, 192(SI), 192(DI))
	SUBQ $256, CX
	JNZ  by256bytes

combine:
	COMBINE
	NARROW
	REDUCE
	MOVL AX, ret+64(FP)
	RET
