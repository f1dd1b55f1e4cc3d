/* The generic header is right for BPF; the machine's own lives in a directory
 * that only its native compiler knows. */
#include <asm-generic/bitsperlong.h>
