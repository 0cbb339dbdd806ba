package main

import (
	"math"
	"runtime/debug"
	"time"
)

// Garbage collection has two phases. A start allocates much more than it
// keeps, so it runs with a lazy collector, but below a limit: spans that the
// start has spread its lasting objects over can never be given back. While
// running, memory matters more than a little work.
const (
	gcPercentStart = 200
	gcPercentRun   = 40
	// memoryLimitStart is in bytes; the runtime may exceed it. It is lifted after
	// memoryLimitTime in any case, so that a large cluster only starts slower.
	memoryLimitStart = 260 << 20
	memoryLimitTime  = 20 * time.Second
)

// collectLazily sets the collector for the start.
func collectLazily() {
	debug.SetGCPercent(gcPercentStart)
	debug.SetMemoryLimit(memoryLimitStart)
	time.AfterFunc(memoryLimitTime, func() { debug.SetMemoryLimit(math.MaxInt64) })
}

// collectThriftily sets it for the time after, and gives back what the start left.
func collectThriftily() {
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(gcPercentRun)
	debug.FreeOSMemory()
}
