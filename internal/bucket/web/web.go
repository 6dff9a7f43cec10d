// Package web lets package bucket read objects of web servers, https:// and http://.
// A server is asked for ranges; one that knows none sends whole objects, of which the
// start is thrown away. Proxies are those of the environment. A name may have a query
// (?token=…).
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
)

func init() {
	bucket.Register("https", open)
	bucket.Register("http", open)
}

func open(_ context.Context, at bucket.Location) (bucket.Driver, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	Tune(transport)
	return &server{at.Scheme + "://" + at.Bucket + "/", &http.Client{Transport: transport}}, nil
}

// Tune sets an HTTP transport up for many requests to one host.
func Tune(t *http.Transport) {
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 256, 256
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.DisableCompression = true // ranges are of the object's own bytes
	t.ReadBufferSize = 64 << 10
}

type server struct {
	root   string
	client *http.Client
}

func (s *server) Get(ctx context.Context, key string, from, n int64, etag string) (io.ReadCloser, bucket.Object, error) {
	if n == 0 {
		return nil, bucket.Object{}, errors.New("a range without bytes")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.root+strings.ReplaceAll(key, " ", "%20"), nil)
	if err != nil {
		return nil, bucket.Object{}, err
	}
	if from > 0 || n > 0 {
		last := ""
		if n > 0 {
			last = strconv.FormatInt(from+n-1, 10)
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", from, last))
	}
	if etag != "" && !strings.HasPrefix(etag, "W/") {
		req.Header.Set("If-Match", etag)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, bucket.Object{}, bucket.Temporary(err) // no answer
	}
	o := bucket.Object{Name: key, Size: resp.ContentLength, ETag: resp.Header.Get("ETag")}
	o.Modified, _ = http.ParseTime(resp.Header.Get("Last-Modified")) // zero if unknown
	fail := func(err error) (io.ReadCloser, bucket.Object, error) {
		return nil, o, errors.Join(err, resp.Body.Close())
	}
	switch resp.StatusCode {
	case http.StatusPartialContent:
		_, total, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		if o.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			o.Size = -1
		}
	case http.StatusOK:
		if o.Whole = from > 0 || n > 0; from > 0 {
			resp.Body = &behind{resp.Body, from, nil}
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if from == 0 { // of an empty object
			o.Size = 0
			return http.NoBody, o, resp.Body.Close()
		}
		return fail(bucket.ErrChanged)
	default:
		return fail(bucket.StatusError(resp.StatusCode, resp.Status))
	}
	if etag != "" && o.ETag != "" && o.ETag != etag {
		return fail(bucket.ErrChanged)
	}
	if n > 0 {
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, n), resp.Body}, o, nil
	}
	return resp.Body, o, nil
}

// behind is what follows the first bytes of a body. Reading past these returns nothing
// again and again, so that whoever watches sees that bytes come.
type behind struct {
	io.ReadCloser
	left  int64
	block []byte
}

func (b *behind) Read(p []byte) (int, error) {
	if b.left == 0 {
		return b.ReadCloser.Read(p)
	}
	if b.block == nil {
		b.block = make([]byte, 64<<10)
	}
	n, err := b.ReadCloser.Read(b.block[:min(b.left, int64(len(b.block)))])
	b.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // it is shorter than it was
	}
	return 0, err
}

func (s *server) List(context.Context, string, string) ([]bucket.Object, string, error) {
	return nil, "", fmt.Errorf("%w: %w", bucket.ErrNoList, fs.ErrPermission)
}
