package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kombi-k8s/kombi/pkg/host"
	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// report turns the readings into figures.
type report struct {
	options  options
	kombi    *readings
	separate *readings
	notes    []string
}

// figure is one line of the table.
type figure struct {
	Name     string   `json:"name"`
	Unit     string   `json:"unit"`
	Kombi    *float64 `json:"kombi"`
	Target   *float64 `json:"target,omitempty"` // at most
	Pass     *bool    `json:"pass,omitempty"`
	Separate *float64 `json:"separate,omitempty"`
	Ratio    *float64 `json:"ratio,omitempty"` // Kombi divided by separate
	Samples  samples  `json:"samples,omitzero"`
}

type samples struct {
	Kombi    []float64 `json:"kombi,omitempty"`
	Separate []float64 `json:"separate,omitempty"`
}

const (
	mib = 1 << 20
	mb  = 1e6
)

// figures are all lines. A limit is a promise of Kombi, printed and judged
// here and nowhere else.
func (r *report) figures() []figure {
	seconds := func(name string, target float64, of func(*readings) []time.Duration) figure {
		f := figure{Name: name, Unit: "s"}
		if target > 0 {
			f.Target = &target
		}
		f.Samples.Kombi = inSeconds(of(r.kombi))
		f.Kombi = median(f.Samples.Kombi)
		if r.separate != nil {
			f.Samples.Separate = inSeconds(of(r.separate))
			f.Separate = median(f.Samples.Separate)
		}
		return f
	}
	number := func(name, unit string, target float64, of func(*readings) (float64, bool)) figure {
		f := figure{Name: name, Unit: unit}
		if target > 0 {
			f.Target = &target
		}
		if v, ok := of(r.kombi); ok {
			f.Kombi = &v
		}
		if r.separate != nil {
			if v, ok := of(r.separate); ok {
				f.Separate = &v
			}
		}
		return f
	}
	idle := func(value func(*readings) float64) func(*readings) (float64, bool) {
		return func(r *readings) (float64, bool) { return value(r), r.window > 0 }
	}
	all := []figure{
		number("size of the program file(s)", "MiB", 75, func(r *readings) (float64, bool) { return float64(r.size) / mib, true }),
		seconds("start on nothing until the node is Ready", 4, func(r *readings) []time.Duration { return r.cold }),
		seconds("start on nothing until an application answers", 7, func(r *readings) []time.Duration { return r.answer }),
		seconds("restart until the node is Ready", 3, func(r *readings) []time.Duration { return r.warm }),
		number("private memory at idle", "MB", 220, idle(func(r *readings) float64 { return float64(r.idle.anon) / mb })),
		number("CPU at idle", "% of a core", 3, idle(func(r *readings) float64 { return 100 * r.idle.cpu.Seconds() / r.window })),
		number("written to disk at idle", "kB/s", 2, idle(func(r *readings) float64 { return float64(r.idle.written) / 1000 / r.window })),
		number("private memory for each pod", "MB", 12, func(r *readings) (float64, bool) { return r.podMemory / mb, r.podMemory > 0 }),
		seconds("stop", 0, func(r *readings) []time.Duration { return r.stop }),
	}
	for i := range all {
		f := &all[i]
		if f.Kombi != nil && f.Target != nil {
			pass := *f.Kombi <= *f.Target
			f.Pass = &pass
		}
		if f.Kombi != nil && f.Separate != nil && *f.Separate > 0 {
			ratio := *f.Kombi / *f.Separate
			f.Ratio = &ratio
		}
	}
	return all
}

func inSeconds(list []time.Duration) (out []float64) {
	for _, d := range list {
		out = append(out, d.Round(time.Millisecond).Seconds())
	}
	return out
}

func median(list []float64) *float64 {
	if len(list) == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(list))
	m := (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	return &m
}

// write prints the table and saves the figures.
func (r *report) write() error {
	figures := r.figures()
	r.addNotes()
	r.print(os.Stdout, figures)
	memory := map[string]any{"kombi": r.kombi.parts}
	if r.separate != nil {
		memory["separate"] = r.separate.parts
	}
	data, err := json.MarshalIndent(map[string]any{
		"time":             time.Now().UTC().Format(time.RFC3339),
		"machine":          machine(),
		"load":             r.options.Load,
		"noisy":            r.noisy(),
		"idleSeconds":      r.kombi.window,
		"pods":             r.options.Pods,
		"figures":          figures,
		"idleMemoryByPart": memory,
		"notes":            r.notes,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.options.Out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.options.Out, append(data, '\n'), 0o644); err != nil || r.options.Readme == "" {
		return err
	}
	return r.intoMarkdown(r.options.Readme, figures)
}

// mark stands alone on the line before and the line after the table in a
// Markdown file.
const mark = "<!-- bench -->\n"

// intoMarkdown replaces the table of a Markdown file.
func (r *report) intoMarkdown(file string, figures []figure) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	parts := strings.Split(string(data), mark)
	if len(parts) != 3 {
		return fmt.Errorf("%s does not have the line %s twice: put them where the table belongs", file, strings.TrimSpace(mark))
	}
	var table strings.Builder
	about := machine()
	fmt.Fprintf(&table, "| %d processors, Linux %s | Kombi | target | separate processes |\n|---|---|---|---|\n", about["processors"], about["kernel"])
	for _, f := range figures {
		target := ""
		if f.Target != nil {
			target = fmt.Sprintf("≤ %g", *f.Target)
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", f.Name, value(f.Kombi, f.Unit), target, value(f.Separate, f.Unit))
	}
	if r.noisy() {
		table.WriteString("\nThe machine had other work to do meanwhile; expect better figures on a quiet one.\n")
	}
	return os.WriteFile(file, []byte(parts[0]+mark+table.String()+mark+parts[2]), 0o644)
}

func machine() map[string]any {
	kernel := host.ReadKernel()
	return map[string]any{
		"processors": runtime.NumCPU(), "memoryMB": host.ReadMemory().Total / 1e6,
		"kernel": fmt.Sprintf("%d.%d", kernel.Major, kernel.Minor), "arch": runtime.GOARCH,
	}
}

// noisy says that others used the machine meanwhile.
func (r *report) noisy() bool {
	return r.options.Noisy || r.kombi.others > 0.1 || r.separate != nil && r.separate.others > 0.1
}

func (r *report) addNotes() {
	if r.noisy() {
		r.notes = append(r.notes, fmt.Sprintf("NOISY: the load was %.1f before the start, and others used %.0f %% of a core while Kombi idled: measure again on a quiet machine",
			r.options.Load, 100*r.kombi.others))
	}
	if r.options.Idle < 5*time.Minute || r.options.After < 5*time.Minute {
		r.notes = append(r.notes, fmt.Sprintf("idle was measured for %s after %s; the targets are for five minutes after five minutes", r.options.Idle, r.options.After))
	}
	if onTmpfs(harness.Dir()) {
		r.notes = append(r.notes, "the data is in memory (tmpfs), so nothing counts as written to disk")
	}
	if r.separate != nil {
		r.notes = append(r.notes,
			"separate processes: kine, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, containerd, kube-proxy (nftables) and CoreDNS, with their defaults, CNI plugins ptp and host-local; certificates made before the clock starts; no storage, metrics or manifests as Kombi has them",
			"their file size is that of all programs uncompressed; Kombi's file is compressed")
	}
}

func (r *report) print(w io.Writer, figures []figure) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nFIGURE\tKOMBI\tTARGET\t\tSEPARATE\tKOMBI/SEPARATE")
	for _, f := range figures {
		verdict := ""
		if f.Pass != nil {
			verdict = map[bool]string{true: "pass", false: "over"}[*f.Pass]
		}
		target := ""
		if f.Target != nil {
			target = fmt.Sprintf("≤ %g", *f.Target)
		}
		ratio := ""
		if f.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *f.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, value(f.Kombi, f.Unit), target, verdict, value(f.Separate, f.Unit), ratio)
	}
	_ = t.Flush()
	for _, side := range []struct {
		name string
		r    *readings
	}{{"kombi", r.kombi}, {"separate", r.separate}} {
		if side.r == nil || len(side.r.parts) < 2 {
			continue
		}
		var parts []string
		for name, bytes := range side.r.parts {
			parts = append(parts, fmt.Sprintf("%s %.0f", name, float64(bytes)/mb))
		}
		slices.Sort(parts)
		fmt.Fprintf(w, "\nprivate memory at idle of the %s processes in MB: %s\n", side.name, strings.Join(parts, ", "))
	}
	if len(r.notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, note := range r.notes {
		fmt.Fprintln(w, "-", note)
	}
	fmt.Fprintf(w, "\nwritten to %s\n", r.options.Out)
}

func value(v *float64, unit string) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%.2f %s", *v, unit)
}
