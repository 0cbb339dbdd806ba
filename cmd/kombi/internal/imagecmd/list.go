package imagecmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

// row is one image in the list; the JSON output has the same fields.
type row struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // bytes stored, compressed as they came
	Created time.Time `json:"created"`
	Pinned  bool      `json:"pinned"`
}

func newList(c connector) *cobra.Command {
	var (
		output string
		all    bool
	)
	cmd := &cobra.Command{
		Use:     "list [NAME...]",
		Aliases: []string{"ls"},
		Short:   "List the images of this node",
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" && output != "name" {
				return fmt.Errorf("unknown output format %q: use json or name", output)
			}
			return c.use(cmd.Context(), func(ctx context.Context, client *containerd.Client) error {
				rows, err := list(ctx, client, all, args)
				if err != nil {
					return err
				}
				return printRows(cmd.OutOrStdout(), rows, output)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json or name; a table without it")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show names by id and by digest too")
	return cmd
}

func list(ctx context.Context, client *containerd.Client, all bool, names []string) ([]row, error) {
	var wanted []string
	for _, name := range names {
		full, err := images.FullName(name, "")
		if err != nil {
			full = name
		}
		wanted = append(wanted, full)
	}
	imgs, err := client.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	rows := []row{}
	for _, img := range imgs {
		if len(wanted) > 0 && !slices.Contains(wanted, img.Name()) {
			continue
		}
		if alias(img.Name()) && !all && len(wanted) == 0 {
			continue
		}
		r := row{
			Name:    img.Name(),
			Digest:  img.Target().Digest.String(),
			Created: img.Metadata().CreatedAt,
			Pinned:  img.Labels()[images.LabelPinned] == images.PinnedValue,
		}
		// An image for another platform has no spec or size here; list it anyway.
		if n, err := img.Size(ctx); err == nil {
			r.Size = n
		}
		if spec, err := img.Spec(ctx); err == nil && spec.Created != nil && spec.Created.Unix() > 0 {
			r.Created = *spec.Created
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	if len(wanted) > 0 && len(rows) == 0 {
		return nil, fmt.Errorf("no image %s on this node: `kombi image list` shows what is there", strings.Join(names, ", "))
	}
	return rows, nil
}

// alias tells if name is one that stands beside a tag: an id or a digest.
func alias(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.Contains(name, "@")
}

func printRows(out io.Writer, rows []row, format string) error {
	switch format {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	case "name":
		for _, r := range rows {
			fmt.Fprintln(out, r.Name)
		}
		return nil
	}
	tw := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSIZE\tCREATED\tPINNED")
	for _, r := range rows {
		pinned := "no"
		if r.Pinned {
			pinned = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s ago\t%s\n", r.Name, bytesText(r.Size), duration.HumanDuration(time.Since(r.Created)), pinned)
	}
	return tw.Flush()
}
