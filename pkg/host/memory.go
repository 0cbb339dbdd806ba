package host

import (
	"strconv"
	"strings"
)

// Memory of the machine in bytes.
type Memory struct {
	Total, Available uint64
	Swap             uint64 // total, used or not
}

// ReadMemory reads /proc/meminfo.
func ReadMemory() Memory { return parseMemory(readAll("/proc/meminfo")) }

func parseMemory(meminfo string) Memory {
	var m Memory
	for line := range strings.Lines(meminfo) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		kib, _ := strconv.ParseUint(fields[0], 10, 64)
		switch name {
		case "MemTotal":
			m.Total = kib * 1024
		case "MemAvailable":
			m.Available = kib * 1024
		case "SwapTotal":
			m.Swap = kib * 1024
		}
	}
	return m
}
