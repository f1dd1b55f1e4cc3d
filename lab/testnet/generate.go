package testnet

//go:generate go tool bpf2go -target bpfel -type box -type mac -type box_flag -type box_counter box bpf/box.bpf.c -- -Ibpf/include -O2 -g -Wall -Werror
