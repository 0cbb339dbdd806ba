package payload

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"testing"
)

func TestTheX86FilterIsReversible(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	if filterFor(self) == plain {
		t.Log("this program is not for x86-64; its bytes serve all the same")
	}
	var edges []byte
	for _, v := range []int32{0, 1, -1, 4, 5, -5, -6, span - 1, span, span - 5, span - 6, span - 11, -span, math.MaxInt32, math.MinInt32} {
		edges = binary.LittleEndian.AppendUint32(append(edges, 0xe8), uint32(v))
	}
	for name, raw := range map[string][]byte{
		"a program":          self,
		"noise":              noise(1 << 20),
		"only calls":         bytes.Repeat([]byte{0xe8}, 1001),
		"edges":              edges,
		"call at the end":    {1, 2, 3, 0xe8, 0, 0, 0},
		"operand at the end": {0xe9, 1, 2, 3, 4},
		"empty":              nil,
	} {
		for _, offset := range []int64{0, 1, FrameSize, 5 * FrameSize, span - 10} {
			b := bytes.Clone(raw)
			x86.encode(b, offset)
			x86.decode(b, offset)
			if !bytes.Equal(b, raw) {
				t.Errorf("%s at %d is not what it was", name, offset)
			}
		}
	}
}

func TestCallsOfOneFunctionLookAlike(t *testing.T) {
	const target = 100_000
	b := make([]byte, 2000)
	for _, at := range []int{10, 1000} {
		b[at] = 0xe8
		binary.LittleEndian.PutUint32(b[at+1:], uint32(target-(at+5)))
	}
	x86.encode(b, 0)
	if !bytes.Equal(b[10:15], b[1000:1005]) {
		t.Errorf("% x and % x", b[10:15], b[1000:1005])
	}
}

func TestFilterFor(t *testing.T) {
	elf := fakeELF()
	if f := filterFor(elf); f != plain {
		t.Errorf("no machine: %s", f)
	}
	elf[18] = 62
	if f := filterFor(elf); f != x86 {
		t.Errorf("x86-64: %s", f)
	}
	if f := filterFor([]byte("\x7fELF")); f != plain {
		t.Errorf("a short file: %s", f)
	}
}
