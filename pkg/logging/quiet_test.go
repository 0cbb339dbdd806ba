package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

func TestEmbeddedPartsAreQuiet(t *testing.T) {
	for name, tc := range map[string]struct {
		level   slog.Level
		settled bool
		say     func(logr.Logger)
		want    string // "" means silence
	}{
		"information is for debugging":              {slog.LevelInfo, true, func(l logr.Logger) { l.Info("x") }, ""},
		"information is there when asked for":       {slog.LevelDebug, true, func(l logr.Logger) { l.Info("x") }, "DEBUG"},
		"an error while running is a warning":       {slog.LevelInfo, true, func(l logr.Logger) { l.Error(errors.New("e"), "x") }, "WARN"},
		"an error while starting is for debugging":  {slog.LevelInfo, false, func(l logr.Logger) { l.Error(errors.New("e"), "x") }, ""},
		"and can be seen in a start with debugging": {slog.LevelDebug, false, func(l logr.Logger) { l.Error(errors.New("e"), "x") }, "DEBUG"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			q := NewQuiet(New(&out, Text, tc.level).Handler())
			q.Settle(tc.settled)
			tc.say(logr.FromSlogHandler(q.WithAttrs([]slog.Attr{slog.String("part", "kubernetes")})))
			got := out.String()
			if tc.want == "" && got != "" {
				t.Fatalf("said %q", got)
			}
			if tc.want != "" && !strings.Contains(got, "level="+tc.want) {
				t.Fatalf("said %q, want level %s", got, tc.want)
			}
		})
	}
}

func TestJSONLinesAreJSON(t *testing.T) {
	var out bytes.Buffer
	New(&out, JSON, slog.LevelInfo).Info("kombi is ready", "node", "n1")
	if got := out.String(); !strings.HasPrefix(got, `{"time":`) || !strings.Contains(got, `"node":"n1"`) {
		t.Fatalf("got %s", got)
	}
}
