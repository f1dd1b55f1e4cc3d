/* No byte swapping instructions to declare: linux/swab.h has generic ones. */
