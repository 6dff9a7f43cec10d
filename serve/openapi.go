package serve

import (
	"bytes"
	"context"
	_ "embed"
	"net/http"
)

// openapi describes what is offered; a test compares it with the routes.
//
//go:embed openapi.json
var openapi []byte

// needsToken is what the description says where a token is needed.
var needsToken = []byte(`"security": [
  {
   "token": []
  }
 ],`)

// describe answers GET /openapi.json.
func describe(token bool) question {
	text := openapi
	if !token {
		text = bytes.Replace(text, needsToken, nil, 1)
	}
	return func(context.Context, *http.Request) (any, error) {
		return file{kind: "application/json", data: text}, nil
	}
}
