package logging

import (
	"io"
	stdlog "log"
	"log/slog"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// Adopt makes the logs of the embedded parts (klog of Kubernetes, logrus of
// containerd and kine, the standard log of others) come out of the logger.
// It sets global state of those libraries, so it is called once, first thing.
// The caller settles the returned handler when the start is over.
func Adopt(log *slog.Logger) Quiet {
	handler := NewQuiet(log.Handler())
	klog.SetSlogLogger(slog.New(handler.WithAttrs([]slog.Attr{slog.String("part", "kubernetes")})))

	logrus.SetOutput(io.Discard)
	logrus.SetFormatter(discardFormatter{})
	logrus.AddHook(&logrusHook{log: slog.New(handler.WithAttrs([]slog.Attr{slog.String("part", "containerd")}))})
	logrus.SetLevel(logrusLevel(log))

	std := slog.NewLogLogger(handler.WithAttrs([]slog.Attr{slog.String("part", "library")}), slog.LevelInfo)
	stdlog.SetFlags(0)
	stdlog.SetOutput(std.Writer())
	return handler
}
