package logging

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Quiet lowers the levels of parts that talk too much. What they call
// information or a warning is debugging to the people who run Kombi. Their
// errors are mostly retried and mended by themselves: while Kombi starts or
// stops, and parts look for others that are not there, they are debugging too;
// in between they are warnings, and the same one is told once in a while only:
// a full disk alone would fill it further with thousands of lines.
type Quiet struct {
	slog.Handler
	settled *atomic.Bool
	recent  *recent
}

// NewQuiet wraps a handler.
func NewQuiet(h slog.Handler) Quiet {
	return Quiet{Handler: h, settled: new(atomic.Bool), recent: newRecent(time.Now)}
}

// Settle says whether the time of starting is over (true) or that of stopping
// has begun (false).
func (q Quiet) Settle(settled bool) { q.settled.Store(settled) }

func (q Quiet) lowered(l slog.Level) slog.Level {
	switch {
	case l < slog.LevelInfo:
		return l + (slog.LevelDebug - slog.LevelInfo)
	case l >= slog.LevelError && q.settled.Load():
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// harmless are the beginnings of what upstream calls an error and nobody can or
// need do anything about: the ends of connections, and rights that containers
// do without.
var harmless = []string{
	"Error on socket receive",
	"Failed to ensure process in container with oom score",
	"failed to apply oom score",
	"Deletion of namespace failed",
	"[SHOULD NOT HAPPEN] failed to update managedFields",
	"collecting metrics for",
	"ttrpc: received message on inactive stream",
}

func isHarmless(message string) bool {
	return slices.ContainsFunc(harmless, func(h string) bool { return strings.HasPrefix(message, h) })
}

// Enabled implements slog.Handler.
func (q Quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return q.Handler.Enabled(ctx, q.lowered(l))
}

// Handle implements slog.Handler.
func (q Quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = q.lowered(r.Level)
	if r.Level > slog.LevelDebug && isHarmless(r.Message) {
		r.Level = slog.LevelDebug
	}
	if !q.Handler.Enabled(ctx, r.Level) {
		return nil // klog hands over errors without asking
	}
	if r.Level > slog.LevelDebug && q.recent.seen(r.Message) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q Quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return Quiet{q.Handler.WithAttrs(attrs), q.settled, q.recent}
}

// WithGroup implements slog.Handler.
func (q Quiet) WithGroup(name string) slog.Handler {
	return Quiet{q.Handler.WithGroup(name), q.settled, q.recent}
}
