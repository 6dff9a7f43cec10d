package command

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline"
)

// folderText says how far the runs have come that write a folder.
func folderText(dir string, f *pipeline.RunFolder, now time.Time) string {
	w := new(strings.Builder)
	of := ""
	if f.Total >= 0 {
		of = fmt.Sprintf(" of %d", f.Total)
		if slices.ContainsFunc(f.Shards, func(s pipeline.RunShard) bool { return s.Total < 0 || s.About }) {
			of = fmt.Sprintf(" of about %d", f.Total)
		}
	}
	fmt.Fprintf(w, "%s: %s, %d of %s finished, %d%s images", dir, f.Kind, f.Finished, count(len(f.Shards), "shard"), f.Done, of)
	if f.PerSecond > 0 {
		fmt.Fprintf(w, ", %.3g images/s", f.PerSecond)
	}
	if f.Left > 0 {
		fmt.Fprintf(w, ", about %s left", pipeline.DurationText(f.Left))
	}
	fmt.Fprintf(w, "\n%s", shardsText(f.Shards, now))
	const most = 10
	kinds := pipeline.MostErrors(f.Errors)
	for _, kind := range kinds[:min(len(kinds), most)] {
		fmt.Fprintf(w, "%7d × %s%s\n", f.Errors[kind], Printable(kind), inShards(f.Shards, kind))
	}
	if n := len(kinds) - most; n > 0 {
		fmt.Fprintf(w, "and %s of errors more\n", count(n, "kind"))
	}
	for _, shard := range f.Shards {
		if shard.State == pipeline.NotMoved {
			fmt.Fprintf(w, "shard %s has not moved since %s; it ran on %s\n", shard.Shard, shard.Moved.Format(time.DateTime), Printable(shard.Host))
		}
	}
	if f.Whole != "" {
		fmt.Fprintf(w, "no feature set yet: %s\n", Printable(f.Whole))
	}
	if v := f.Summary; v != nil && v.Images > 0 {
		fmt.Fprintf(w, "\nverdicts of the finished shards: %d in distribution, %d out of distribution, %d unreadable\n", v.InDistribution, v.OOD, v.Failed)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "class\timages\tout of distribution\t")
		for i, name := range slices.Sorted(maps.Keys(v.Classes)) {
			if i == mostRows {
				fmt.Fprintf(t, "and %d more\t\t\t\n", len(v.Classes)-mostRows)
				break
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t\n", Printable(name), v.Classes[name].Images, v.Classes[name].OOD)
		}
		t.Flush()
		fmt.Fprintf(w, "p-values in steps of 1/%d: %v\n", len(v.PValues), v.PValues)
	}
	return w.String()
}

// shardsText has a line for each shard; of many, for those that need a look.
func shardsText(shards []pipeline.RunShard, now time.Time) string {
	w := new(strings.Builder)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "shard\tstate\tdone\tof\timages/s\terrors\tlast image\t")
	total := func(s pipeline.RunShard) string {
		switch {
		case s.Total < 0:
			return "?"
		case s.About:
			return fmt.Sprint("about ", s.Total)
		}
		return fmt.Sprint(s.Total)
	}
	shown := 0
	for _, shard := range shards {
		if len(shards) > mostRows && (shard.State == pipeline.Finished || shown == mostRows) {
			continue
		}
		shown++
		failed := 0
		for _, n := range shard.Errors {
			failed += n
		}
		moved, speed := "", ""
		if shard.Moved != nil && shard.State != pipeline.Finished {
			moved = pipeline.DurationText(now.Sub(*shard.Moved).Seconds()) + " ago"
		}
		if shard.PerSecond > 0 {
			speed = fmt.Sprintf("%.3g", shard.PerSecond)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%d\t%s\t\n", shard.Shard, shard.State, shard.Done, total(shard), speed, failed, moved)
	}
	t.Flush()
	if left := len(shards) - shown; left > 0 {
		fmt.Fprintf(w, "and %s more\n", count(left, "shard"))
	}
	return w.String()
}

// inShards says how many errors of a kind there are in each shard, the most first.
func inShards(shards []pipeline.RunShard, kind string) string {
	if len(shards) == 1 {
		return ""
	}
	const most = 5
	have := slices.DeleteFunc(slices.Clone(shards), func(s pipeline.RunShard) bool { return s.Errors[kind] == 0 })
	slices.SortStableFunc(have, func(a, b pipeline.RunShard) int { return cmp.Compare(b.Errors[kind], a.Errors[kind]) })
	var parts []string
	for _, s := range have[:min(len(have), most)] {
		parts = append(parts, fmt.Sprintf("%d in shard %s", s.Errors[kind], s.Shard))
	}
	if n := len(have) - most; n > 0 {
		parts = append(parts, fmt.Sprintf("others in %s", count(n, "more shard")))
	}
	return ": " + strings.Join(parts, ", ")
}
