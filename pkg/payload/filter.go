package payload

import (
	"encoding/binary"
	"fmt"
)

// filter is a reversible change of the bytes of a file before compression.
type filter string

const (
	plain filter = "plain"
	// x86 makes the operands of calls and jumps absolute: a call of the same
	// function then has the same bytes everywhere, and Go programs get 7 %
	// smaller. Whether a byte is a call at all does not matter, as long as both
	// directions decide alike.
	x86 filter = "x86"
)

func filterNamed(name string) (filter, error) {
	switch f := filter(name); f {
	case plain, x86:
		return f, nil
	}
	return "", fmt.Errorf("index has the unknown filter %q", name)
}

// filterFor chooses by the machine that an ELF program is for.
func filterFor(program []byte) filter {
	const machineOffset, x8664 = 18, 62
	if len(program) > machineOffset+2 && string(program[:4]) == "\x7fELF" && binary.LittleEndian.Uint16(program[machineOffset:]) == x8664 {
		return x86
	}
	return plain
}

// The operand is mapped within [-position, span) onto itself, one to one:
// operands whose target lies in the file become that target, the others make
// room for them; see the E8 translation of Microsoft's LZX format.
const span = 1 << 30

// encode changes b, which starts at the given offset of its file, in place.
func (f filter) encode(b []byte, offset int64) {
	if !f.applies(b, offset) {
		return
	}
	for i := operand(b, 0); i > 0; i = operand(b, i+4) {
		position := int32(offset) + int32(i) + 4
		v := int32(binary.LittleEndian.Uint32(b[i:]))
		switch {
		case v >= -position && v < span-position:
			v += position
		case v >= span-position && v < span:
			v -= span
		}
		// The high bytes of near targets are alike: they come first.
		binary.BigEndian.PutUint32(b[i:], uint32(v))
	}
}

// decode undoes encode.
func (f filter) decode(b []byte, offset int64) {
	if !f.applies(b, offset) {
		return
	}
	for i := operand(b, 0); i > 0; i = operand(b, i+4) {
		position := int32(offset) + int32(i) + 4
		v := int32(binary.BigEndian.Uint32(b[i:]))
		switch {
		case v >= 0 && v < span:
			v -= position
		case v < 0 && v >= -position:
			v += span
		}
		binary.LittleEndian.PutUint32(b[i:], uint32(v))
	}
}

func (f filter) applies(b []byte, offset int64) bool {
	return f == x86 && offset+int64(len(b)) < span
}

// operand returns the index of the first operand of a call (0xe8) or jump
// (0xe9) that begins at from or behind it, or 0.
func operand(b []byte, from int) int {
	for i := from; i+5 <= len(b); i++ {
		if b[i]&^1 == 0xe8 {
			return i + 1
		}
	}
	return 0
}
