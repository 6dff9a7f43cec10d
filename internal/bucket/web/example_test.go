package web_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

// A program that imports this package reads parts of files of web servers.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "train.tar", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	}))
	defer server.Close()

	ctx := context.Background()
	folder, name, err := bucket.OpenObject(ctx, server.URL+"/train.tar")
	if err != nil {
		log.Fatal(err)
	}
	part, object, err := folder.OpenRange(ctx, name, 3, 4, "")
	if err != nil {
		log.Fatal(err)
	}
	defer part.Close()
	data, err := io.ReadAll(part)
	fmt.Printf("%s of %d bytes, %v\n", data, object.Size, err)
	// Output:
	// 3456 of 10 bytes, <nil>
}
