package serve

import (
	"embed"
	"net/http"
	"path"

	"mlrbfn/report"
)

//go:embed web
var web embed.FS

// pageRoutes are the page and its files. They hold nothing about images, so that they
// need no token; what the page shows it asks for.
func (s *Server) pageRoutes() []route {
	file := func(pattern, name, kind string) route {
		data, err := web.ReadFile(path.Join("web", name))
		if err != nil {
			panic(err) // it is embedded
		}
		return page(pattern, kind, data)
	}
	return []route{
		file("GET /{$}", "page.html", "text/html; charset=utf-8"),
		file("GET /page.js", "page.js", "text/javascript; charset=utf-8"),
		file("GET /page.css", "page.css", "text/css; charset=utf-8"),
		file("GET /icon.svg", "icon.svg", "image/svg+xml"),
		page("GET /style.css", "text/css; charset=utf-8", []byte(report.StyleSheet())),
	}
}

// page answers with a file of the page.
func page(pattern, kind string, data []byte) route {
	return route{pattern: pattern, open: true, page: true, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data) // whoever has left gets no answer
	}}
}
