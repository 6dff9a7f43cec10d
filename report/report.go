// Package report makes pages of results that a browser shows without a network: of an
// evaluation ([Write], which also makes tables in the paper's layout, in Markdown and
// LaTeX), of a detector, of judged images, of images judged together, of the faults of a set of images and of a
// course of images.
//
// The same input gives the same page: the caller supplies dates, versions and
// commands. Chart.js, which is part of the page, draws the charts; without
// JavaScript they are said in words. [Draw] makes pictures of them for files, so that
// programs without these do not need the plotting modules. The size of the page does
// not depend on the number of scores: histograms are binned, curves thinned, galleries
// short.
package report

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Check returns an error if Write could not write to dir. Call it before long
// work. A report.html that this package did not make is never replaced. Dir need
// not exist yet.
func Check(dir string) error {
	return CheckPage(filepath.Join(dir, "report.html"))
}

// Write writes report.html, its charts as figures/*.svg, and the paper's tables,
// tables.md and tables.tex, to the folder dir, which it makes if necessary. It removes
// pictures of an earlier report that this one does not have. Only the first run of each
// method is drawn. Published are lines to compare with, such as those of [Benchmarks],
// each with one cell.
func Write(dir string, e *evaluation.Evaluation, published ...Line) error {
	if len(e.Results) == 0 {
		return errors.New("report: no results")
	}
	if err := Check(dir); err != nil {
		return err
	}
	figures := filepath.Join(dir, "figures")
	v, err := newView(e, published)
	if err == nil {
		err = os.MkdirAll(figures, 0o777)
	}
	if err == nil {
		err = v.writeFigures(figures)
	}
	if err != nil {
		return failed(err)
	}
	if err := writePage(filepath.Join(dir, "report.html"), "evaluation.html", v); err != nil {
		return err
	}
	return WriteTables(dir, []Study{{Benchmark: e.ID.Name, Results: e.Results}}, published)
}
