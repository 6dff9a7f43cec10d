package cli

import "strconv"

// Printable quotes a name that would disturb a terminal or the table.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
