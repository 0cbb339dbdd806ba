// Package logging sends every log line of the process, ours and those of the
// embedded parts, through one slog handler.
package logging

import (
	"io"
	"log/slog"
	"time"
)

// Formats that New accepts.
const (
	Text = "text"
	JSON = "json"
)

// New returns a logger that writes lines of the given format at or above the level.
func New(w io.Writer, format string, level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if format == JSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// readable prints durations as people read them.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}
