// Train is the command train of mlrbfn as a program of its own.
package main

import "github.com/mlrbfn/mlrbfn/internal/command"

func main() { command.Main("train") }
