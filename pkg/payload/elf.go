package payload

import (
	"encoding/binary"
	"errors"
	"io"
)

// elfEnd returns the offset just after the last byte that a 64-bit
// little-endian ELF file describes: its segments, sections and both header
// tables. Whatever follows was appended. debug/elf would do, but it doubles
// the size of the launcher.
func elfEnd(r io.ReaderAt) (int64, error) {
	const (
		ehdrSize      = 64
		phdrSize      = 56
		shdrSize      = 64
		classOffset   = 4
		class64       = 2
		littleEndian  = 1
		sectionNoBits = 8
	)
	le := binary.LittleEndian
	eh := make([]byte, ehdrSize)
	if _, err := r.ReadAt(eh, 0); err != nil {
		return 0, err
	}
	if string(eh[:4]) != "\x7fELF" || eh[classOffset] != class64 || eh[classOffset+1] != littleEndian {
		return 0, errors.New("not a 64-bit little-endian ELF file")
	}
	phoff, shoff := int64(le.Uint64(eh[32:])), int64(le.Uint64(eh[40:]))
	phnum, shnum := int(le.Uint16(eh[56:])), int(le.Uint16(eh[60:]))
	end := max(ehdrSize, phoff+int64(phnum)*phdrSize, shoff+int64(shnum)*shdrSize)

	table := make([]byte, phnum*phdrSize)
	if _, err := r.ReadAt(table, phoff); err != nil {
		return 0, err
	}
	for ; len(table) > 0; table = table[phdrSize:] {
		end = max(end, int64(le.Uint64(table[8:]))+int64(le.Uint64(table[32:])))
	}
	table = make([]byte, shnum*shdrSize)
	if _, err := r.ReadAt(table, shoff); err != nil {
		return 0, err
	}
	for ; len(table) > 0; table = table[shdrSize:] {
		if le.Uint32(table[4:]) != sectionNoBits {
			end = max(end, int64(le.Uint64(table[24:]))+int64(le.Uint64(table[32:])))
		}
	}
	return end, nil
}

// start returns where the payload of an executable that ends at end begins.
func start(end int64) int64 { return (end + alignment - 1) / alignment * alignment }
