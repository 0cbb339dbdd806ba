package imagecmd

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// progress shows how far one long action is: a bar that is redrawn on a
// terminal, a line now and then elsewhere, nothing at all for what is done
// within a second.
type progress struct {
	out   io.Writer
	label string
	start time.Time

	current, total atomic.Int64
	width          int // of the terminal, 0 when out is none
	stop, stopped  chan struct{}
}

// newProgress starts a display; total is in bytes, 0 when it is not known.
func newProgress(out io.Writer, label string, total int64) *progress {
	p := &progress{
		out: out, label: label, start: time.Now(),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	p.total.Store(total)
	every := 5 * time.Second
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		every = 100 * time.Millisecond
		p.width = 80
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			p.width = w
		}
	}
	go p.run(every)
	return p
}

// set tells the number of bytes done.
func (p *progress) set(n int64) { p.current.Store(n) }

// grow tells a new total.
func (p *progress) grow(total int64) { p.total.Store(total) }

// done ends the display and clears the bar.
func (p *progress) done() {
	close(p.stop)
	<-p.stopped
}

func (p *progress) run(every time.Duration) {
	defer close(p.stopped)
	wait, drawn := max(time.Second, every), false
	for {
		select {
		case <-p.stop:
			if drawn && p.width > 0 {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return
		case <-time.After(wait):
		}
		wait, drawn = every, true
		text := p.text(p.current.Load(), p.total.Load(), time.Since(p.start))
		if p.width > 0 {
			fmt.Fprint(p.out, "\r\x1b[K"+text)
		} else {
			fmt.Fprintln(p.out, text)
		}
	}
}

func (p *progress) text(current, total int64, took time.Duration) string {
	rate := float64(current) / max(took.Seconds(), 0.001)
	speed := bytesText(int64(rate)) + "/s"
	if total <= 0 {
		return p.fit(fmt.Sprintf("%s  %s  %s", p.label, bytesText(current), speed))
	}
	current = min(current, total)
	share := float64(current) / float64(total)
	figures := fmt.Sprintf("%3.0f%%  %s of %s  %s", 100*share, bytesText(current), bytesText(total), speed)
	room := min(p.width-len(p.label)-len(figures)-6, 30)
	if room < 5 {
		return p.fit(p.label + "  " + figures)
	}
	full := int(share * float64(room))
	return p.label + "  [" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "] " + figures
}

// fit cuts a text to the width of the terminal, so that it never wraps.
func (p *progress) fit(text string) string {
	if p.width > 1 && len(text) >= p.width {
		return text[:p.width-1]
	}
	return text
}

// bytesText prints a number of bytes in the decimal units of storage.
func bytesText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
