package status

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kombi-k8s/kombi/pkg/component"
)

// Print writes the report for people: what runs, where the time of the start
// went, the node's conditions, and the first thing that is wrong.
func Print(w io.Writer, r *Report) error {
	state := "starting"
	if r.Ready {
		state = "ready after " + seconds(r.ReadyAfter)
	}
	fmt.Fprintf(w, "Kombi %s, process %d, started %s, %s\n\n", r.Version, r.PID, r.Started.Format(time.DateTime), state)

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COMPONENT\tSTATE\tBEGAN\tTOOK\tWAITED FOR\tRESTARTS")
	for _, c := range r.Components {
		began, took := seconds(c.Began), seconds(c.Took)
		if c.State == component.Waiting {
			began = "-"
		}
		if c.State == component.Waiting || c.State == component.Starting {
			took = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", c.Name, c.State, began, took, dash(c.WaitedFor), c.Restarts)
	}
	if r.Node != nil {
		fmt.Fprintln(t)
		fmt.Fprintf(t, "NODE %s\tSTATUS\tREASON\n", r.Node.Name)
		for _, c := range r.Node.Conditions {
			fmt.Fprintf(t, "%s\t%s\t%s\n", c.Type, c.Status, c.Reason)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Problem != "" {
		_, err := fmt.Fprintf(w, "\nFirst problem: %s\n", r.Problem)
		return err
	}
	_, err := fmt.Fprintln(w, "\nNo problem found.")
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
