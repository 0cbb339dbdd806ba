package config

import (
	"sort"
	"strings"
)

// Suggest returns the candidate that was most likely meant by word, or "" when none is near.
func Suggest(word string, candidates []string) string {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(s))
	}
	w := plain(word)
	if w == "" {
		return ""
	}
	sorted := append([]string(nil), candidates...)
	sort.Strings(sorted)
	var begins []string
	best, bestDist := "", 1+len(w)/4 // a quarter of the letters may be wrong
	for _, c := range sorted {
		p := plain(c)
		if len(w) >= 4 && strings.HasPrefix(p, w) {
			begins = append(begins, c)
		}
		if d := distance(w, p); d <= bestDist && (best == "" || d < bestDist) {
			best, bestDist = c, d
		}
	}
	if best == "" && len(begins) == 1 {
		return begins[0]
	}
	return best
}

// distance is the optimal string alignment distance: insertions, deletions, changes and swaps of neighbours.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
