package logging

import (
	"context"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// logrusHook passes the entries of logrus on to slog.
type logrusHook struct{ log *slog.Logger }

var logrusLevels = map[logrus.Level]slog.Level{
	logrus.PanicLevel: slog.LevelError,
	logrus.FatalLevel: slog.LevelError,
	logrus.ErrorLevel: slog.LevelError,
	logrus.WarnLevel:  slog.LevelWarn,
	logrus.InfoLevel:  slog.LevelInfo,
	logrus.DebugLevel: slog.LevelDebug,
	logrus.TraceLevel: slog.LevelDebug - 4,
}

// Levels implements logrus.Hook.
func (h *logrusHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (h *logrusHook) Fire(e *logrus.Entry) error {
	attrs := make([]slog.Attr, 0, len(e.Data))
	for k, v := range e.Data {
		attrs = append(attrs, slog.Any(k, v))
	}
	h.log.LogAttrs(context.Background(), logrusLevels[e.Level], e.Message, attrs...)
	return nil
}

// logrusLevel keeps logrus from building entries that nobody reads.
func logrusLevel(log *slog.Logger) logrus.Level {
	if log.Enabled(context.Background(), slog.LevelDebug) {
		return logrus.InfoLevel
	}
	return logrus.WarnLevel
}

// discardFormatter saves the work of formatting what is thrown away.
type discardFormatter struct{}

// Format implements logrus.Formatter.
func (discardFormatter) Format(*logrus.Entry) ([]byte, error) { return nil, nil }
