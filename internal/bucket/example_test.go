package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

// A folder of a web server is read as one of an object store is; only the URL differs.
func ExampleOpen() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/photos/cat.txt" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "a cat")
	}))
	defer server.Close()

	ctx := context.Background()
	photos, err := bucket.Open(ctx, server.URL+"/photos")
	if err != nil {
		log.Fatal(err)
	}
	data, object, err := photos.Read(ctx, "cat.txt", 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s, %d bytes\n", object.Name, data, object.Size)
	_, _, err = photos.Read(ctx, "dog.txt", 1<<20)
	fmt.Println("no dog:", errors.Is(err, fs.ErrNotExist))
	for _, err = range photos.List(ctx, "") {
		fmt.Println("no list:", errors.Is(err, bucket.ErrNoList))
	}
	// Output:
	// cat.txt: a cat, 5 bytes
	// no dog: true
	// no list: true
}
