package report

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// Table is a table in the layout of the paper's: groups of the columns near-OOD,
// far-OOD and ID accuracy, one for each in-distribution benchmark, and sections
// of lines.
type Table struct {
	Caption    string
	Label      string   // for references in LaTeX; "" omits it
	Benchmarks []string // in-distribution data sets
	Lower      bool     // lower near- and far-OOD values are better
	Sections   []Section
}

// Section holds lines under a heading.
type Section struct {
	Title string
	Lines []Line
}

// Line is a method on one backbone.
type Line struct {
	Method   string
	Backbone string // "" if the line names none
	Cells    []Cell // one for each benchmark
}

func (l Line) name() string {
	if l.Backbone == "" {
		return l.Method
	}
	return l.Method + ", " + l.Backbone
}

// Cell holds the three values of a line on a benchmark.
type Cell struct{ Near, Far, Acc Value }

// ours is the heading of methods named mlrbfn….
const ours = "Multi-layer Radial Basis Function Networks"

// Study is an evaluation on one benchmark with one backbone.
type Study struct {
	Benchmark, Backbone string
	Results             []metrics.Measurement
}

// PaperTable makes a table of studies like the paper's tables 2 to 4: MLRBFNs
// first, then the other methods, each with a line for every backbone. Benchmarks,
// methods and backbones are in the order of their first appearance.
func PaperTable(m Metric, studies []Study) Table {
	t := Table{Lower: m.Lower}
	var methods, backbones []string
	for _, s := range studies {
		t.Benchmarks = add(t.Benchmarks, s.Benchmark)
		backbones = add(backbones, s.Backbone)
		methods = add(methods, order(s.Results, func(r metrics.Measurement) string { return r.Method })...)
	}
	mlrbfns := Section{Title: ours}
	others := Section{Title: "Other methods on the same features"}
	for _, method := range methods {
		for _, backbone := range backbones {
			line := Line{Method: method, Backbone: backbone}
			known := false
			for _, benchmark := range t.Benchmarks {
				cell := Cell{none, none, none}
				for _, s := range studies {
					if s.Benchmark == benchmark && s.Backbone == backbone {
						rs := index(s.Results)
						cell = Cell{rs.value(m, method, metrics.Near, "mean"), rs.value(m, method, metrics.Far, "mean"), rs.accuracy(method)}
					}
				}
				known = known || !math.IsNaN(cell.Near.Mean) || !math.IsNaN(cell.Far.Mean)
				line.Cells = append(line.Cells, cell)
			}
			if !known {
				continue
			}
			if strings.HasPrefix(method, "mlrbfn") {
				mlrbfns.Lines = append(mlrbfns.Lines, line)
			} else {
				others.Lines = append(others.Lines, line)
			}
		}
	}
	for _, s := range []Section{mlrbfns, others} {
		if len(s.Lines) > 0 {
			t.Sections = append(t.Sections, s)
		}
	}
	return t
}

// PublishedTable makes a table of studies like the paper's first: the AUROC of
// MLRBFNs, a line for each backbone, above published lines. These have a cell for
// each benchmark of the studies, in the order of first appearance.
func PublishedTable(studies []Study, published []Line) Table {
	t := PaperTable(AUROC, studies)
	t.Sections = slices.DeleteFunc(t.Sections, func(s Section) bool { return s.Title != ours })
	return Table{Benchmarks: t.Benchmarks, Sections: append(t.Sections, Section{Title: "OpenOOD v1.5 Benchmarks", Lines: published})}
}

// WriteTables writes tables of studies like the paper's to tables.md and
// tables.tex in dir: the first table if there are published lines, then those of
// AUROC, AUPR-Out and FPR@95.
func WriteTables(dir string, studies []Study, published []Line) error {
	const caption = " and accuracy in per cent, mean and standard deviation over the seeds."
	var tables []Table
	if len(published) > 0 {
		t := PublishedTable(studies, published)
		t.Caption, t.Label = AUROC.Name+caption, "tab:openood"
		tables = append(tables, t)
	}
	for _, m := range []Metric{AUROC, AUPROut, FPR95} {
		t := PaperTable(m, studies)
		t.Caption, t.Label = m.Name+caption, "tab:"+strings.ToLower(strings.ReplaceAll(m.Name, "@", ""))
		tables = append(tables, t)
	}
	for file, write := range map[string]func(io.Writer, Table) error{"tables.md": Markdown, "tables.tex": LaTeX} {
		err := disk.Write(filepath.Join(dir, file), func(w io.Writer) error {
			for i, t := range tables {
				if i > 0 {
					if _, err := io.WriteString(w, "\n"); err != nil {
						return err
					}
				}
				if err := write(w, t); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// bold marks the best values of every column, for all lines in their order.
func (t Table) bold() (marks [][3]bool) {
	var lines []Line
	for _, s := range t.Sections {
		lines = append(lines, s.Lines...)
	}
	marks = make([][3]bool, len(lines)*len(t.Benchmarks))
	for b := range t.Benchmarks {
		for k := range 3 {
			values := lists.Map(lines, func(l Line) Value { return l.Cells[b].values()[k] })
			for i, isBest := range best(values, t.Lower && k < 2) {
				marks[i*len(t.Benchmarks)+b][k] = isBest
			}
		}
	}
	return marks
}

func (c Cell) values() [3]Value { return [3]Value{c.Near, c.Far, c.Acc} }

// Markdown writes a table for GitHub, in per cent, the best of each column bold.
// Sections are lines with a bold name.
func Markdown(w io.Writer, t Table) error {
	var b strings.Builder
	if t.Caption != "" {
		fmt.Fprintf(&b, "%s\n\n", escapeMarkdown(t.Caption))
	}
	b.WriteString("| |")
	for _, benchmark := range t.Benchmarks {
		for _, column := range []string{"Near-OOD", "Far-OOD", "ID Acc."} {
			fmt.Fprintf(&b, " %s %s |", escapeMarkdown(benchmark), column)
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", 3*len(t.Benchmarks)) + "\n")
	marks := t.bold()
	for _, s := range t.Sections {
		if s.Title != "" {
			fmt.Fprintf(&b, "| **%s** |%s\n", escapeMarkdown(s.Title), strings.Repeat(" |", 3*len(t.Benchmarks)))
		}
		for _, l := range s.Lines {
			fmt.Fprintf(&b, "| %s |", escapeMarkdown(l.name()))
			for i, c := range l.Cells {
				for k, v := range c.values() {
					text := percent(v.Mean)
					if marks[i][k] {
						text = "**" + text + "**"
					}
					if !math.IsNaN(v.Mean) && !math.IsNaN(v.Std) {
						text += " ± " + percent(v.Std)
					}
					fmt.Fprintf(&b, " %s |", text)
				}
			}
			marks = marks[len(l.Cells):]
			b.WriteString("\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// escapeMarkdown escapes a text so that Markdown shows it unchanged, on one line.
func escapeMarkdown(text string) string { return markup.Replace(plain(text)) }

var markup = strings.NewReplacer(`\`, `\\`, `|`, `\|`, `*`, `\*`, `_`, `\_`, "`", "\\`", `<`, `\<`, `[`, `\[`, `]`, `\]`, `$`, `\$`)

// plain puts a blank in the place of what is no printable character: controls, and
// what turns the direction of writing.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// LaTeX writes a table in the paper's style, with the packages booktabs, multirow
// and graphicx, in per cent, deviations as subscripts, the best of each column
// bold.
func LaTeX(w io.Writer, t Table) error {
	var b strings.Builder
	b.WriteString("\\begin{table*}[!ht]\n")
	if t.Caption != "" {
		fmt.Fprintf(&b, "\\caption{%s}\n", escapeLaTeX(t.Caption))
	}
	if t.Label != "" {
		fmt.Fprintf(&b, "\\label{%s}\n", label(t.Label))
	}
	n := 3 * len(t.Benchmarks)
	backbones := slices.ContainsFunc(t.Sections, func(s Section) bool {
		return slices.ContainsFunc(s.Lines, func(l Line) bool { return l.Backbone != "" })
	})
	lead, names := " ", "l"
	if backbones {
		lead, names = " & ", "ll"
	}
	b.WriteString("\\centering\n\\resizebox{\\textwidth}{!}{\n\\begin{tabular}{" + names + strings.Repeat("|ccc", len(t.Benchmarks)) + "}\n\\toprule\n")
	b.WriteString(lead)
	for i, benchmark := range t.Benchmarks {
		columns := "c|"
		if i == len(t.Benchmarks)-1 {
			columns = "c"
		}
		fmt.Fprintf(&b, "& \\multicolumn{3}{%s}{\\textbf{%s}} ", columns, escapeLaTeX(benchmark))
	}
	b.WriteString("\\\\\n" + lead + strings.Repeat("& Near-OOD & Far-OOD & ID Acc. ", len(t.Benchmarks)) + "\\\\\n\\midrule\n")
	marks := t.bold()
	for _, s := range t.Sections {
		if s.Title != "" {
			fmt.Fprintf(&b, "\\multicolumn{%d}{l}{\\textbf{- %s}} \\\\\n", n+len(names), escapeLaTeX(s.Title))
		}
		for i, l := range s.Lines {
			if backbones {
				b.WriteString(multirow(s.Lines, i) + " & " + escapeLaTeX(l.Backbone) + " ")
			} else {
				b.WriteString(escapeLaTeX(l.Method) + " ")
			}
			for k, c := range l.Cells {
				for j, v := range c.values() {
					b.WriteString("& " + latexValue(v, marks[k][j]) + " ")
				}
			}
			marks = marks[len(l.Cells):]
			b.WriteString("\\\\\n")
		}
	}
	b.WriteString("\\bottomrule\n\\end{tabular}}\n\\end{table*}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// multirow puts the name of a method before the first of its lines.
func multirow(lines []Line, i int) string {
	method := lines[i].Method
	if i > 0 && lines[i-1].Method == method {
		return ""
	}
	n := 1
	for i+n < len(lines) && lines[i+n].Method == method {
		n++
	}
	if n == 1 {
		return escapeLaTeX(method)
	}
	return fmt.Sprintf("\\multirow{%d}{*}{%s}", n, escapeLaTeX(method))
}

func latexValue(v Value, bold bool) string {
	if math.IsNaN(v.Mean) {
		return "N/A"
	}
	text := percent(v.Mean)
	if bold {
		text = "\\textbf{" + text + "}"
	}
	if !math.IsNaN(v.Std) {
		text += "\\textsubscript{(\\textpm " + percent(v.Std) + ")}"
	}
	return text
}

// escapeLaTeX escapes a text so that LaTeX prints it unchanged, on one line and
// without control characters.
func escapeLaTeX(text string) string { return commands.Replace(plain(text)) }

var commands = strings.NewReplacer(`\`, `\textbackslash{}`, `{`, `\{`, `}`, `\}`, `&`, `\&`, `%`, `\%`, `$`, `\$`,
	`#`, `\#`, `_`, `\_`, `~`, `\textasciitilde{}`, `^`, `\textasciicircum{}`, `"`, `\textquotedbl{}`, `<`, `\textless{}`, `>`, `\textgreater{}`,
	`[`, `{[}`, `]`, `{]}`, `*`, `{*}`) // the last three are arguments where a line begins with them

// label drops the characters that would end a LaTeX label.
func label(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(":-+. ", r) {
			return r
		}
		return -1
	}, text)
}
