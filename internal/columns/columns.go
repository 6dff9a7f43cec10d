// Package columns writes and reads features as Parquet: one row per image, with the
// features as a list of float32 and what is known of the image beside it.
package columns

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Row is a row of a file.
type Row struct {
	Row       int64     `parquet:"row"`
	Path      string    `parquet:"path,zstd"`
	Label     *string   `parquet:"label,optional,dict"`
	Hash      string    `parquet:"hash"` // SHA-256 of the image's file
	Bytes     int64     `parquet:"bytes"`
	MTime     int64     `parquet:"mtime"`
	Embedding []float32 `parquet:"embedding,list"`
}

// groupBytes is about how many bytes of features a row group has. Writer and readers
// hold one group in memory.
const groupBytes = 32 << 20

// Picture is a small picture of an image, as Hugging Face's datasets and its viewer have it.
type Picture struct {
	Bytes []byte  `parquet:"bytes,optional"` // of a file
	Path  *string `parquet:"path,optional"`
}

// Pictures is the metadata, a key and a text, that says to datasets that the column image
// has pictures.
var Pictures = parquet.KeyValueMetadata("huggingface", `{"info": {"features": {"image": {"_type": "Image"}}}}`)

// NewPicture returns a column's value; nil without a picture.
func NewPicture(file []byte, of string) *Picture {
	if file == nil {
		return nil
	}
	name := path.Base(of)
	return &Picture{file, &name}
}

// pictured is a row of a file with pictures.
type pictured struct {
	Row
	Image *Picture `parquet:"image,optional"`
}

// Writer writes one file.
type Writer struct {
	d     int
	write func(Row, []byte) error
	w     interface {
		Flush() error
		Close() error
	}
	left  int // rows until the group is full
	group int // rows of a group
}

// arrow is the schema of a file as Arrow's message, with a length of the embeddings of 0 at
// the byte arrowLength, and that of a file with pictures, which has the
// metadata of Pictures, too: made by PyArrow, pa.schema([…]).serialize().
const (
	arrow       = "/////+gBAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAcAAACEAQAARAEAABgBAADcAAAAqAAAAHQAAAAEAAAAqP7//wAAABAUAAAAJAAAAAQAAAABAAAAIAAAAAkAAABlbWJlZGRpbmcABgAIAAQABgAAAAAAAADg/v//AAAAAxAAAAAgAAAABAAAAAAAAAAHAAAAZWxlbWVudAAAAAYACAAGAAYAAAAAAAEAFP///wAAAAIQAAAAGAAAAAQAAAAAAAAABQAAAG10aW1lAAAACP///wAAAAFAAAAARP///wAAAAIQAAAAGAAAAAQAAAAAAAAABQAAAGJ5dGVzAAAAOP///wAAAAFAAAAAdP///wAAAAUQAAAAGAAAAAQAAAAAAAAABAAAAGhhc2gAAAAAoP///xAAFAAIAAYABwAMAAAAEAAQAAAAAAABBRAAAAAYAAAABAAAAAAAAAAFAAAAbGFiZWwAAADY////1P///wAAAAUQAAAAHAAAAAQAAAAAAAAABAAAAHBhdGgAAAAABAAEAAQAAAAQABQACAAAAAcADAAAABAAEAAAAAAAAAIQAAAAHAAAAAQAAAAAAAAAAwAAAHJvdwAIAAwACAAHAAgAAAAAAAABQAAAAA=="
	arrowLength = 136

	arrowPictures       = "/////+ACAAAQAAAAAAAKAA4ABgAFAAgACgAAAAABBAAQAAAAAAAKAAwAAAAEAAgACgAAAHAAAAAEAAAAAQAAAAwAAAAIAAwABAAIAAgAAABEAAAABAAAADUAAAB7ImluZm8iOiB7ImZlYXR1cmVzIjogeyJpbWFnZSI6IHsiX3R5cGUiOiAiSW1hZ2UifX19fQAAAAsAAABodWdnaW5nZmFjZQAIAAAACAIAAMgBAACcAQAAYAEAACwBAAD4AAAAiAAAAAQAAACM/v//AAABDRgAAAAgAAAABAAAAAIAAABAAAAAFAAAAAUAAABpbWFnZQAAAFz+//+8/v//AAABBRAAAAAYAAAABAAAAAAAAAAEAAAAcGF0aAAAAACE/v//5P7//wAAAQQQAAAAGAAAAAQAAAAAAAAABQAAAGJ5dGVzAAAArP7//6j+//8AAAAQFAAAACQAAAAEAAAAAQAAACAAAAAJAAAAZW1iZWRkaW5nAAYACAAEAAYAAAAAAAAA4P7//wAAAAMQAAAAIAAAAAQAAAAAAAAABwAAAGVsZW1lbnQAAAAGAAgABgAGAAAAAAABABT///8AAAACEAAAABgAAAAEAAAAAAAAAAUAAABtdGltZQAAAAj///8AAAABQAAAAET///8AAAACEAAAABgAAAAEAAAAAAAAAAUAAABieXRlcwAAADj///8AAAABQAAAAHT///8AAAAFEAAAABgAAAAEAAAAAAAAAAQAAABoYXNoAAAAAKD///8QABQACAAGAAcADAAAABAAEAAAAAAAAQUQAAAAGAAAAAQAAAAAAAAABQAAAGxhYmVsAAAA2P///9T///8AAAAFEAAAABwAAAAEAAAAAAAAAAQAAABwYXRoAAAAAAQABAAEAAAAEAAUAAgAAAAHAAwAAAAQABAAAAAAAAACEAAAABwAAAAEAAAAAAAAAAMAAAByb3cACAAMAAgABwAIAAAAAAAAAUAAAAAAAAAA"
	arrowPicturesLength = 380
)

// arrowSchema says to readers that embeddings are lists of one length, which vector stores
// ask for and Parquet itself does not have.
func arrowSchema(schema string, length, d int) parquet.WriterOption {
	message, err := base64.StdEncoding.DecodeString(schema)
	if err != nil {
		panic(err)
	}
	binary.LittleEndian.PutUint32(message[length:], uint32(d))
	return parquet.KeyValueMetadata("ARROW:schema", base64.StdEncoding.EncodeToString(message))
}

// NewWriter begins a file of rows with d features, and perhaps pictures. The metadata is a
// text that readers find by the key.
func NewWriter(w io.Writer, d int, pictures bool, key, metadata string) *Writer {
	group := max(1, groupBytes/(4*max(d, 1)))
	c := &Writer{d: d, group: group, left: group}
	options := []parquet.WriterOption{
		parquet.KeyValueMetadata(key, metadata), parquet.CreatedBy("mlrbfn", "1", ""), parquet.DataPageStatistics(false),
		parquet.SkipPageBounds("embedding", "list", "element"), parquet.PageBufferSize(1 << 20),
	}
	if !pictures {
		out := parquet.NewGenericWriter[Row](w, append(options, arrowSchema(arrow, arrowLength, d))...)
		c.w, c.write = out, func(row Row, _ []byte) error {
			_, err := out.Write([]Row{row})
			return err
		}
		return c
	}
	out := parquet.NewGenericWriter[pictured](w, append(options, arrowSchema(arrowPictures, arrowPicturesLength, d), Pictures)...)
	c.w, c.write = out, func(row Row, picture []byte) error {
		_, err := out.Write([]pictured{{row, NewPicture(picture, row.Path)}})
		return err
	}
	return c
}

// Write adds a row, whose features may change afterwards, and a picture's file; nil for none.
func (w *Writer) Write(row Row, picture []byte) error {
	if len(row.Embedding) != w.d {
		return fmt.Errorf("a row of %d features in a file of %d", len(row.Embedding), w.d)
	}
	if err := w.write(row, picture); err != nil {
		return err
	}
	if w.left--; w.left > 0 {
		return nil
	}
	w.left = w.group
	return w.w.Flush()
}

// Close completes the file. It does not close the underlying writer.
func (w *Writer) Close() error { return w.w.Close() }

// File is a file that is read.
type File struct {
	N       int
	f       *os.File
	r       *parquet.GenericReader[Row]
	columns map[string]bool
	meta    func(key string) (string, bool)
	name    string
}

// ErrFormat is wrapped by the errors about the content of a file.
var ErrFormat = errors.New("not a Parquet file of features")

// Open opens a file that this package or another program wrote. It must have the
// columns path and embedding, a list of float32.
func Open(path string) (_ *File, err error) {
	f, err := disk.Open(path, disk.Values)
	if err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil { // the library's, of a file that it cannot convert
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			err = errors.Join(fmt.Errorf("%s is %w: %w", path, ErrFormat, err), f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := CheckFooter(f, info.Size()); err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return nil, err
	}
	c := &File{N: int(file.NumRows()), f: f, columns: map[string]bool{}, meta: file.Lookup, name: path}
	for _, field := range file.Schema().Fields() {
		c.columns[field.Name()] = true
	}
	for _, name := range []string{"path", "embedding"} {
		if !c.columns[name] {
			return nil, fmt.Errorf("it has no column %s", name)
		}
	}
	c.r = parquet.NewGenericReader[Row](file)
	return c, nil
}

// Metadata returns the text of a key.
func (f *File) Metadata(key string) (string, bool) { return f.meta(key) }

// Each calls do with every row. The row is overwritten afterwards.
func (f *File) Each(do func(Row) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is %w: %v", f.name, ErrFormat, p)
		}
	}()
	rows := make([]Row, 64)
	for {
		n, err := f.r.Read(rows)
		for i := range rows[:n] {
			if err := do(rows[i]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s is %w: %w", f.name, ErrFormat, err)
		}
	}
}

// Close closes the file.
func (f *File) Close() error { return errors.Join(f.r.Close(), f.f.Close()) }

// maxFooter bounds what is read of the description of a file.
const maxFooter = 256 << 20

// CheckFooter makes sure that the description of a file is not larger than it may be.
func CheckFooter(r io.ReaderAt, size int64) error {
	tail := make([]byte, 8)
	if size < 12 {
		return fmt.Errorf("it is no Parquet file: it has %d bytes", size)
	}
	if _, err := r.ReadAt(tail, size-8); err != nil && err != io.EOF {
		return err
	}
	n := int64(tail[0]) | int64(tail[1])<<8 | int64(tail[2])<<16 | int64(tail[3])<<24
	if string(tail[4:]) != "PAR1" || n > size-12 || n > maxFooter {
		return errors.New("it is no Parquet file, or was cut off: its end is not that of one")
	}
	return nil
}
