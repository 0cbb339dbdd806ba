// Package bpf holds the programs of the data plane: C sources, the object that
// clang made of them, and the Go types of their maps. Building Kombi needs no clang.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -strip llvm-strip -output-stem kombi Kombi kombi.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
