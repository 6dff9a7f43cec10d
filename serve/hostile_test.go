package serve

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// attacked is a service on an address of its own, as the program runs it.
func attacked(t *testing.T, change func(*Options)) (s *Server, address string) {
	t.Helper()
	opts := Options{Detectors: Detectors{Detectors: []Named{{Name: "main", File: servetest.Detector(t, 1)}}}}
	change(&opts)
	s, err := New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	address, stop := listening(t, s)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		if s.placesIn() != 0 {
			t.Errorf("%d places are taken", s.placesIn())
		}
		s.Close()
	})
	return s, address
}

// raw sends bytes and returns the status lines of all answers until the connection ends or
// nothing comes any more.
func raw(t *testing.T, address, text string) (statuses []int) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, text)
	_ = conn.(*net.TCPConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(conn)
	for {
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses
		}
		_, _ = io.Copy(io.Discard, response.Body)
		statuses = append(statuses, response.StatusCode)
	}
}

// TestSmuggling: a request whose length can be read in two ways, by a proxy in another way
// than here, is refused, or ends the connection after its answer.
func TestSmuggling(t *testing.T) {
	_, address := attacked(t, func(*Options) {})
	const hidden = "GET /v1/shadows HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for name, tt := range map[string]struct {
		text string
		want []int
	}{
		"two lengths":             {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc" + hidden, []int{400}},
		"a length with a sign":    {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: +3\r\n\r\nabc" + hidden, []int{400}},
		"another coding":          {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc" + hidden, []int{501}},
		"two codings":             {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden, []int{501}},
		"a space before a colon":  {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length : 3\r\n\r\nabc" + hidden, []int{400}},
		"a header on two lines":   {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tTransfer-Encoding: chunked\r\n\r\n", []int{200}},
		"two hosts":               {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n" + hidden, []int{400}},
		"no host":                 {"GET /healthz HTTP/1.1\r\n\r\n" + hidden, []int{400}},
		"a line feed in a chunk":  {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;\nx\r\na\r\n0\r\n\r\n" + hidden, []int{400}},
		"a chunk without an end":  {"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\na", []int{400}},
		"another version":         {"GET /healthz HTTP/3.0\r\nHost: localhost\r\n\r\n", []int{505}},
		"an address of elsewhere": {"GET http://evil.example/v1/shadows HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{421}},
		"no HTTP":                 {"\x16\x03\x01\x02\x00\x01\x00", []int{400}},
	} {
		if got := raw(t, address, tt.text); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	// With both, chunks count, and what a proxy may have taken for the rest of the body is
	// another request, which has no more rights than any.
	both := "POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + strings.Replace(hidden, "localhost", "evil.example", 1)
	for i, status := range raw(t, address, both) {
		if status == 200 {
			t.Errorf("answer %d to a request with two lengths is %d", i, status)
		}
	}
}

// TestDrip: a client that sends a byte now and then is ended as one that sends none, and
// many of them do not keep others out.
func TestDrip(t *testing.T) {
	_, address := attacked(t, func(o *Options) {
		o.ReadTimeout, o.Running, o.Waiting, o.PerClient = 300*time.Millisecond, 1, 8, 4
	})
	const slow = 12
	ended := make(chan string, slow)
	for i := range slow {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			fmt.Fprintf(conn, "POST /v1/detect?name=%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", i)
			go func() {
				for {
					if _, err := conn.Write([]byte("x")); err != nil {
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			line, _ := bufio.NewReader(conn).ReadString('\n')
			ended <- line
		}()
	}
	statuses := map[string]int{}
	for range slow {
		_, status, _ := strings.Cut(strings.TrimSpace(<-ended), " ")
		statuses[status]++
	}
	if statuses["408 Request Timeout"] == 0 || statuses["408 Request Timeout"]+statuses["429 Too Many Requests"] != slow {
		t.Errorf("%v", statuses)
	}
	if status, _, text := ask(t, "POST", "http://"+address+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1))); status != 200 {
		t.Errorf("afterwards: %d %s", status, text)
	}
}

// exhausted is a listener that has no file descriptor for the first connection.
type exhausted struct {
	net.Listener
	once sync.Once
}

func (l *exhausted) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { err = &net.OpError{Op: "accept", Err: syscall.EMFILE} })
	if err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// TestOutOfDescriptors: that connections cannot be taken is an error in the log and counted,
// also without a bound for connections, and the service goes on.
func TestOutOfDescriptors(t *testing.T) {
	for _, bound := range []int{-1, 256} {
		var said bytes.Buffer
		s, err := New(t.Context(), Options{Detectors: Detectors{Detectors: []Named{{Name: "main", File: servetest.Detector(t, 1)}}}, PerClientConns: bound, Quiet: true, Log: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, []net.Listener{&exhausted{Listener: l}}, nil) }()
		if status, _, text := ask(t, "GET", "http://"+l.Addr().String()+"/healthz", nil, nil); status != 200 {
			t.Errorf("%d %s", status, text)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		metrics := httptest.NewServer(s.MetricsHandler())
		_, _, counted := ask(t, "GET", metrics.URL+"/metrics", nil, nil)
		metrics.Close()
		s.Close()
		if said := said.String(); strings.Contains(said, "msg=request") || !strings.Contains(said, "msg=listening") {
			t.Errorf("quietly it says %s", said) // what goes on, but for requests
		}
		if !strings.Contains(said.String(), "level=ERROR") || !strings.Contains(said.String(), "out of file descriptors") || !strings.Contains(counted, "mlrbfn_refused_connections_total 1") {
			t.Errorf("with a bound of %d: %s", bound, &said)
		}
	}
}

// chunk is one of a PNG.
func chunk(kind string, data []byte) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), kind...)
	b = append(b, data...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
}

// TestBombs: a small file that says that it is huge, or grows when it is unpacked, is
// refused, and quickly.
func TestBombs(t *testing.T) {
	w := start(t, nil)
	header := func(width, height uint32) []byte {
		size := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
		return append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", append(size, 8, 2, 0, 0, 0))...)
	}
	packed := func(n int) []byte {
		var b bytes.Buffer
		z := zlib.NewWriter(&b)
		_, _ = z.Write(make([]byte, n))
		z.Close()
		return b.Bytes()
	}
	end := chunk("IEND", nil)
	for name, data := range map[string][]byte{
		"a PNG of 2³¹ × 2³¹ pixels":   append(append(header(1<<31-1, 1<<31-1), chunk("IDAT", packed(100))...), end...),
		"a PNG with too many pixels":  append(append(header(60000, 60000), chunk("IDAT", packed(1<<20))...), end...),
		"a PNG that holds more":       append(append(header(5, 3), chunk("IDAT", packed(64<<20))...), end...),
		"a PNG whose text is more":    append(append(append(header(5, 3), chunk("zTXt", append([]byte("a\x00\x00"), packed(64<<20)...))...), chunk("IDAT", packed(10))...), end...),
		"a GIF of 65535² pixels":      []byte("GIF89a\xff\xff\xff\xff\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x02D\x01\x00;"),
		"a JPEG of 65535² pixels":     append([]byte("\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"), make([]byte, 100)...),
		"a BMP of 2³¹ pixels a side":  append([]byte("BM\x3a\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00\xff\xff\xff\x7f\xff\xff\xff\x7f\x01\x00\x18\x00"), make([]byte, 30)...),
		"a page in place of an image": []byte("<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"),
	} {
		status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(data))
		good := status == 200 && strings.HasSuffix(name, " more") // what is beyond the pixels is not unpacked
		if status != 422 && !good || strings.Contains(text, "<svg") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}
