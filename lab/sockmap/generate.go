package sockmap

//go:generate go tool bpf2go -target bpfel sockmap bpf/sockmap.bpf.c -- -I../testnet/bpf/include -O2 -g -Wall -Werror
