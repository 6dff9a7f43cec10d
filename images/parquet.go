package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/internal/columns"
)

// The names of columns, the first that is there counts. A dot leads into a struct.
var (
	dataColumns  = []string{"image.bytes", "img.bytes", "image", "img", "image_bytes", "bytes", "jpg", "jpeg", "png", "webp"}
	pathColumns  = []string{"path", "image_path", "file_name", "url", "image_url", "image.path", "img.path"}
	labelColumns = []string{"label", "cls", "class", "fine_label"}
)

const (
	// maxRefs bounds the rows of a file of paths.
	maxRefs = 1 << 26
	batch   = 16 // rows at once: of images, each may be large
)

// table is an open file.
type parquetTable struct {
	file        *parquet.File
	data        int // columns, −1 if there is none
	path, label int
	names       []string // of labels that are numbers
}

func openParquet(r io.ReaderAt, size int64) (t *parquetTable, err error) {
	defer recovered(&err)
	if err := columns.CheckFooter(r, size); err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true), parquet.ReadBufferSize(1<<20))
	if err != nil {
		return nil, err
	}
	t = &parquetTable{file: f}
	t.data = t.column(dataColumns, parquet.ByteArray, func(c parquet.LeafColumn) bool {
		logical := c.Node.Type().LogicalType()
		return logical == nil || logical.String() != "STRING"
	})
	t.path = t.column(pathColumns, parquet.ByteArray, nil)
	if t.label = t.column(labelColumns, parquet.ByteArray, nil); t.label < 0 {
		if t.label = t.column(labelColumns, parquet.Int64, nil); t.label < 0 {
			t.label = t.column(labelColumns, parquet.Int32, nil)
		}
	}
	if t.data < 0 && t.path < 0 {
		return nil, fmt.Errorf("none of its columns is one of images (%s) or of paths (%s)", strings.Join(dataColumns, ", "), strings.Join(pathColumns, ", "))
	}
	if t.label >= 0 {
		t.names = parquetClassNames(f, f.Schema().Columns()[t.label][0])
	}
	return t, nil
}

// recovered turns a panic of the library on a malformed file into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("it is malformed: %v", p)
	}
}

// column returns the first column of a type whose name is one of these, −1 if there is none.
func (t *parquetTable) column(names []string, kind parquet.Kind, fits func(parquet.LeafColumn) bool) int {
	schema := t.file.Schema()
	for _, name := range names {
		c, ok := schema.Lookup(strings.Split(name, ".")...)
		if ok && c.Node.Leaf() && c.MaxRepetitionLevel == 0 && c.Node.Type().Kind() == kind && (fits == nil || fits(c)) {
			return c.ColumnIndex
		}
	}
	return -1
}

// classNames returns the names of classes that the library datasets has put into the file.
func parquetClassNames(f *parquet.File, column string) []string {
	text, ok := f.Lookup("huggingface")
	if !ok {
		return nil
	}
	var about struct {
		Info struct {
			Features map[string]struct {
				Names []string `json:"names"`
			} `json:"features"`
		} `json:"info"`
	}
	if json.Unmarshal([]byte(text), &about) != nil {
		return nil
	}
	return about.Info.Features[column].Names
}

// labelOf returns the text of a label.
func (t *parquetTable) labelOf(v parquet.Value) string {
	switch v.Kind() {
	case parquet.ByteArray:
		if !v.IsNull() {
			return string(v.ByteArray())
		}
	case parquet.Int32, parquet.Int64:
		n := v.Int64()
		if v.Kind() == parquet.Int32 {
			n = int64(v.Int32())
		}
		switch {
		case v.IsNull() || n < 0:
		case n < int64(len(t.names)):
			return t.names[n]
		default:
			return strconv.FormatInt(n, 10)
		}
	}
	return ""
}

// each gives the values of some columns of each row.
func (t *parquetTable) each(ctx context.Context, columns []int, yield func(row int64, values []parquet.Value) error) (err error) {
	defer recovered(&err)
	number := int64(0)
	for _, group := range t.file.RowGroups() {
		readers := make([]*values, len(columns))
		for i, c := range columns {
			if c >= 0 {
				readers[i] = &values{pages: group.ColumnChunks()[c].Pages()}
				defer readers[i].pages.Close()
			}
		}
		row := make([]parquet.Value, len(columns))
		for range group.NumRows() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			for i, r := range readers {
				if r == nil {
					continue
				}
				if row[i], err = r.next(); err != nil {
					return fmt.Errorf("row %d: %w", number, err)
				}
			}
			if err := yield(number, row); err != nil {
				return err
			}
			number++
		}
	}
	return nil
}

// values reads a column of a row group.
type values struct {
	pages  parquet.Pages
	page   parquet.Page
	reader parquet.ValueReader
	have   []parquet.Value
	buffer [batch]parquet.Value
}

func (v *values) next() (parquet.Value, error) {
	for len(v.have) == 0 {
		if v.reader == nil {
			page, err := v.pages.ReadPage()
			if err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return parquet.Value{}, err
			}
			v.page, v.reader = page, page.Values()
		}
		n, err := v.reader.ReadValues(v.buffer[:])
		v.have = v.buffer[:n]
		if err != nil && err != io.EOF {
			return parquet.Value{}, err
		}
		if err == io.EOF && n == 0 {
			parquet.Release(v.page)
			v.reader = nil
		}
	}
	first := v.have[0]
	v.have = v.have[1:]
	return first, nil
}

// parquetRefs returns the images that a table refers to by their paths or URLs; ok is
// false for one that holds the bytes of images: of a struct of bytes and path, as the
// library datasets of Hugging Face writes them, or of jpg, png or webp, as img2dataset does.
func parquetRefs(ctx context.Context, r io.ReaderAt, size int64) (refs []ref, ok bool, err error) {
	t, err := openParquet(r, size)
	if err != nil || t.data >= 0 {
		return nil, false, err
	}
	if t.file.NumRows() > maxRefs {
		return nil, false, fmt.Errorf("%d paths, and a file may have %d", t.file.NumRows(), maxRefs)
	}
	err = t.each(ctx, []int{t.path, t.label}, func(row int64, values []parquet.Value) error {
		path := string(values[0].ByteArray())
		if values[0].IsNull() || path == "" {
			return fmt.Errorf("row %d has no path", row)
		}
		refs = append(refs, ref{Path: path, Label: t.labelOf(values[1])})
		return nil
	})
	return refs, true, err
}

// parquetRows gives the images of a table in order. What is in a tableRow may be used until
// yield returns. An error of yield ends it.
func parquetRows(ctx context.Context, r io.ReaderAt, size int64, yield func(tableRow) error) error {
	t, err := openParquet(r, size)
	if err != nil {
		return err
	}
	return t.each(ctx, []int{t.data, t.label}, func(row int64, values []parquet.Value) error {
		one := tableRow{Number: row, Label: t.labelOf(values[1])}
		if values[0].IsNull() {
			one.Err = errors.New("the row has no image")
		} else {
			one.Data = slices.Clip(values[0].ByteArray())
		}
		return yield(one)
	})
}
