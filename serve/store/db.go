package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// db is a store in a database of either kind. Both take the same statements but
// where it says postgres.
type db struct {
	postgres, readOnly bool
	tallied            bool   // the store has the table counts, as all have but old ones that are only read
	path               string // of an SQLite file, and
	file               os.FileInfo
	write, read        *sql.DB // one and the same with PostgreSQL; write is nil where only reading is allowed
}

func (d *db) Close() error {
	var errs []error
	for _, pool := range []*sql.DB{d.write, d.read} {
		if pool != nil {
			errs = append(errs, pool.Close())
		}
	}
	return errors.Join(errs...)
}

// errReadOnly is that of changing a store that was opened for reading.
var errReadOnly = options.Errorf("ReadOnly", "the store was opened for reading only")

// inTx runs do in a transaction that may write, and commits it unless do fails.
func (d *db) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	if d.readOnly {
		return errReadOnly
	}
	if d.file != nil {
		if now, err := os.Stat(d.path); err != nil || !os.SameFile(d.file, now) {
			return fmt.Errorf("the file %s of the store is not the one that was opened: it was removed or replaced", d.path)
		}
	}
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // the first error says more
		return err
	}
	return tx.Commit()
}

// lockHead returns the last line of the trail, which no other transaction can
// follow before this one has ended.
func (d *db) lockHead(ctx context.Context, tx *sql.Tx) (seq int64, last hash, err error) {
	statement := `SELECT seq, hash FROM head WHERE one = 1`
	if d.postgres {
		statement += ` FOR UPDATE` // SQLite's transactions exclude each other from the start
	}
	var sum []byte
	if err = tx.QueryRowContext(ctx, statement).Scan(&seq, &sum); err == nil && len(sum) != len(last) {
		err = &BrokenError{Seq: seq, What: "the head has no hash"}
	}
	copy(last[:], sum)
	return seq, last, err
}

func setHead(ctx context.Context, tx *sql.Tx, seq int64, last hash) error {
	_, err := tx.ExecContext(ctx, `UPDATE head SET seq = $1, hash = $2 WHERE one = 1`, seq, last[:])
	return err
}

func (d *db) Add(ctx context.Context, verdicts []Verdict) error {
	if len(verdicts) == 0 {
		return nil
	}
	rows := make([]Verdict, 0, len(verdicts))
	seen := make(map[string]bool, len(verdicts))
	for _, v := range verdicts {
		if v = v.normal(); v.ID == "" {
			return options.Errorf("ID", "a verdict without an id")
		}
		if !seen[v.ID] {
			seen[v.ID] = true
			rows = append(rows, v)
		}
	}
	return d.inTx(ctx, func(tx *sql.Tx) error {
		seq, last, err := d.lockHead(ctx, tx)
		if err != nil {
			return err
		}
		stored, err := d.has(ctx, tx, slices.Collect(maps.Keys(seen)))
		if err != nil {
			return err
		}
		var hasher lineHash
		var lines, features [][]any
		t := tally{}
		for i := range rows {
			v := &rows[i]
			if stored[v.ID] {
				continue
			}
			seq++
			last = hasher.ofVerdict(last, seq, v)
			t.count(v)
			lines = append(lines, []any{seq, v.ID, v.Time.UnixMicro(), v.Source, v.Name, v.Image, v.Detector, v.Model, v.Class,
				number(v.Confidence), number(v.Score), number(v.PValue), number(v.Threshold), v.OOD, slices.Clone(last[:])})
			if v.Features != nil {
				features = append(features, []any{seq, featureBytes(v.Features)})
			}
		}
		if len(lines) == 0 {
			return nil
		}
		if err := d.insert(ctx, tx, `verdicts (`+columns+`, hash)`, lines, ``); err != nil {
			return err
		}
		if err := d.insert(ctx, tx, `features (seq, data)`, features, ``); err != nil {
			return err
		}
		if err := d.insert(ctx, tx, `counts`, t.rows(), addCounts); err != nil {
			return err
		}
		return setHead(ctx, tx, seq, last)
	})
}

const columns = `seq, id, time, source, name, image, detector, model, class, confidence, score, p_value, threshold, ood`

// postgresTypes are the types of columns by those of their values.
var postgresTypes = map[reflect.Type]string{
	reflect.TypeFor[int64](): "bigint", reflect.TypeFor[string](): "text", reflect.TypeFor[bool](): "bool",
	reflect.TypeFor[float64](): "float8", reflect.TypeFor[*float64](): "float8", reflect.TypeFor[[]byte](): "bytea",
}

// insert inserts rows, whose values have the same types in each. With PostgreSQL it takes
// one statement, as each costs the time to the server and back.
func (d *db) insert(ctx context.Context, tx *sql.Tx, into string, rows [][]any, conflict string) error {
	if len(rows) == 0 {
		return nil
	}
	places := make([]string, len(rows[0]))
	if d.postgres {
		columns := make([]any, len(places))
		for c, value := range rows[0] {
			kind := reflect.TypeOf(value)
			column := reflect.MakeSlice(reflect.SliceOf(kind), 0, len(rows))
			for _, row := range rows {
				column = reflect.Append(column, reflect.ValueOf(row[c]))
			}
			columns[c], places[c] = column.Interface(), fmt.Sprintf("$%d::%s[]", c+1, postgresTypes[kind])
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO `+into+` SELECT * FROM unnest(`+strings.Join(places, ", ")+`)`+conflict, columns...)
		return err
	}
	for c := range places {
		places[c] = fmt.Sprintf("$%d", c+1)
	}
	line, err := tx.PrepareContext(ctx, `INSERT INTO `+into+` VALUES (`+strings.Join(places, ", ")+`)`+conflict)
	if err != nil {
		return err
	}
	defer line.Close()
	for _, row := range rows {
		if _, err := line.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return nil
}

// number is a float64 for a database; NaN, which SQLite does not know, is NULL.
func number(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

// real reads a number that number wrote.
type real struct{ to *float64 }

func (r real) Scan(value any) error {
	var v sql.NullFloat64
	err := v.Scan(value)
	if *r.to = v.Float64; !v.Valid {
		*r.to = math.NaN()
	}
	return err
}

// instant reads microseconds since 1970.
type instant struct{ to *time.Time }

func (t instant) Scan(value any) error {
	var v sql.NullInt64
	err := v.Scan(value)
	if *t.to = time.UnixMicro(v.Int64).UTC(); !v.Valid {
		*t.to = time.Time{}
	}
	return err
}

func featureBytes(values []float32) []byte {
	data, _ := binary.Append(nil, binary.LittleEndian, values) // never fails for numbers
	return data
}

func (d *db) Review(ctx context.Context, reviews []Review) error {
	if len(reviews) == 0 {
		return nil
	}
	for _, r := range reviews {
		switch r.Decision {
		case IsClass, IsNew:
			if r.Class == "" {
				return options.Errorf("Class", "a review %q of verdict %s needs the name of a class", r.Decision, r.ID)
			}
		case IsFine, IsJunk, Undo, Acted:
		default:
			return options.Errorf("Decision", "%q is none", r.Decision)
		}
	}
	return d.inTx(ctx, func(tx *sql.Tx) error {
		seq, last, err := d.lockHead(ctx, tx)
		if err != nil {
			return err
		}
		var lines lineHash
		for _, r := range reviews {
			r = r.normal()
			var n int
			if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM verdicts WHERE id = $1`, r.ID).Scan(&n); err != nil {
				return err
			}
			if n == 0 && r.Decision != Acted {
				return fmt.Errorf("verdict %q: %w", r.ID, ErrNotFound)
			}
			seq++
			last = lines.ofReview(last, seq, &r)
			if _, err := tx.ExecContext(ctx, `INSERT INTO reviews (seq, id, time, reviewer, decision, class, hash) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
				seq, r.ID, r.Time.UnixMicro(), r.By, string(r.Decision), r.Class, slices.Clone(last[:])); err != nil {
				return err
			}
		}
		return setHead(ctx, tx, seq, last)
	})
}

// queried is a database, or a transaction.
type queried interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// query calls each for every row that a statement gives.
func query(ctx context.Context, in queried, each func(*sql.Rows) error, statement string, args ...any) (err error) {
	rows, err := in.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d *db) Get(ctx context.Context, id string) (Record, error) {
	found, err := d.list(ctx, Query{Limit: 1}, id)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("verdict %q: %w", id, ErrNotFound)
	}
	if err != nil {
		return Record{}, err
	}
	return found[0], nil
}

// among returns the condition that a column has one of some texts, which are the only
// argument.
func (d *db) among(texts []string) (condition string, argument any, err error) {
	all := lists.Map(texts, plain)
	if d.postgres {
		return ` = ANY($1)`, all, nil
	}
	list, err := json.Marshal(all)
	return ` IN (SELECT value FROM json_each($1))`, string(list), err
}

func (d *db) Has(ctx context.Context, ids []string) (map[string]bool, error) {
	return d.has(ctx, d.read, ids)
}

func (d *db) has(ctx context.Context, in queried, ids []string) (map[string]bool, error) {
	among, argument, err := d.among(ids)
	if err != nil {
		return nil, err
	}
	found := make(map[string]bool, len(ids))
	err = query(ctx, in, func(row *sql.Rows) error {
		var id string
		err := row.Scan(&id)
		found[id] = true
		return err
	}, `SELECT id FROM verdicts WHERE id`+among, argument)
	return found, err
}

func (d *db) List(ctx context.Context, q Query) ([]Record, error) { return d.list(ctx, q, "") }

// list is List of the verdict with an id, unless "".
func (d *db) list(ctx context.Context, q Query, id string) ([]Record, error) {
	var args arguments
	statement := `SELECT v.` + strings.ReplaceAll(columns, ", ", ", v.") + `, r.time, r.reviewer, r.decision, r.class ` + q.from(&args, id, true)
	switch q.Order {
	case Newest:
		statement += ` ORDER BY v.seq DESC`
	case Oldest:
		statement += ` ORDER BY v.seq`
	case Strangest:
		statement += ` ORDER BY v.p_value, v.score, v.seq`
	default:
		return nil, options.Errorf("Order", "%d is none", q.Order)
	}
	statement += ` LIMIT ` + args.add(cmp.Or(q.Limit, 100)) + ` OFFSET ` + args.add(q.Skip)
	var list []Record
	err := query(ctx, d.read, func(row *sql.Rows) error {
		var r Record
		var when time.Time
		var by, decision, class sql.NullString
		if err := row.Scan(append(fieldsOf(&r.Seq, &r.Verdict), instant{&when}, &by, &decision, &class)...); err != nil {
			return err
		}
		if decision.Valid {
			r.Review = &Review{ID: r.ID, Time: when, By: by.String, Decision: Decision(decision.String), Class: class.String}
		}
		list = append(list, r)
		return nil
	}, statement, args...)
	return list, err
}

// fieldsOf are where the columns of a verdict are read to.
func fieldsOf(seq *int64, v *Verdict) []any {
	return []any{seq, &v.ID, instant{&v.Time}, &v.Source, &v.Name, &v.Image, &v.Detector, &v.Model, &v.Class,
		real{&v.Confidence}, real{&v.Score}, real{&v.PValue}, real{&v.Threshold}, &v.OOD}
}

// arguments are those of a statement that is put together.
type arguments []any

// add adds an argument and returns its place in the statement.
func (a *arguments) add(value any) string {
	*a = append(*a, value)
	return fmt.Sprintf("$%d", len(*a))
}

// from returns the part of a statement that says which verdicts v a query means; if
// reviewed, with the review r that counts.
func (q *Query) from(args *arguments, id string, reviewed bool) string {
	var where []string
	is := func(condition string, value any) { where = append(where, condition+args.add(value)) }
	tables := `FROM verdicts v LEFT JOIN reviews r ON r.seq = (SELECT max(n.seq) FROM reviews n WHERE n.id = v.id) AND r.decision <> 'undo'`
	switch {
	case q.Reviewed != nil && *q.Reviewed || len(q.Decisions) > 0:
		// There are far fewer reviews than verdicts.
		tables = `FROM reviews r JOIN verdicts v ON v.id = r.id`
		where = append(where, `r.decision <> 'undo'`, `NOT EXISTS (SELECT 1 FROM reviews n WHERE n.id = r.id AND n.seq > r.seq)`)
	case q.Reviewed == nil && !reviewed:
		tables = `FROM verdicts v`
	}
	if q.Reviewed != nil && !*q.Reviewed {
		where = append(where, `r.seq IS NULL`)
	}
	if len(q.Decisions) > 0 {
		places := lists.Map(q.Decisions, func(decision Decision) string { return args.add(string(decision)) })
		where = append(where, `r.decision IN (`+strings.Join(places, ", ")+`)`)
	}
	if id != "" {
		is(`v.id = `, plain(id))
	}
	if !q.From.IsZero() {
		is(`v.time >= `, q.From.UnixMicro())
	}
	if !q.To.IsZero() {
		is(`v.time < `, q.To.UnixMicro())
	}
	for _, text := range []struct{ column, value string }{{"source", q.Source}, {"class", q.Class}, {"detector", q.Detector}, {"image", q.Image}} {
		if text.value != "" {
			is(`v.`+text.column+` = `, plain(text.value))
		}
	}
	if q.OOD != nil {
		if *q.OOD {
			where = append(where, `v.ood`)
		} else {
			where = append(where, `NOT v.ood`)
		}
	}
	if q.AfterSeq != 0 {
		is(`v.seq > `, q.AfterSeq)
	}
	if q.UntilSeq != 0 {
		is(`v.seq <= `, q.UntilSeq)
	}
	if q.WithFeatures {
		where = append(where, `EXISTS (SELECT 1 FROM features f WHERE f.seq = v.seq)`)
	}
	if len(where) == 0 {
		return tables
	}
	return tables + ` WHERE ` + strings.Join(where, ` AND `)
}

func (d *db) Reviews(ctx context.Context, id string) ([]Review, error) {
	var list []Review
	err := query(ctx, d.read, func(row *sql.Rows) error {
		var r Review
		err := row.Scan(&r.ID, instant{&r.Time}, &r.By, &r.Decision, &r.Class)
		list = append(list, r)
		return err
	}, `SELECT id, time, reviewer, decision, class FROM reviews WHERE id = $1 ORDER BY seq`, plain(id))
	return list, err
}

func (d *db) Features(ctx context.Context, ids []string) (map[string][]float32, error) {
	among, argument, err := d.among(ids)
	if err != nil {
		return nil, err
	}
	features := make(map[string][]float32, len(ids))
	err = query(ctx, d.read, func(row *sql.Rows) error {
		var id string
		var data []byte
		if err := row.Scan(&id, &data); err != nil {
			return err
		}
		if len(data)%4 != 0 {
			return fmt.Errorf("the features of verdict %s have %d bytes", id, len(data))
		}
		values := make([]float32, len(data)/4)
		_, err := binary.Decode(data, binary.LittleEndian, values)
		features[id] = values
		return err
	}, `SELECT v.id, f.data FROM verdicts v JOIN features f ON f.seq = v.seq WHERE v.id`+among, argument)
	return features, err
}

func (d *db) DropFeatures(ctx context.Context, before int64) (n int, err error) {
	err = d.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM features WHERE seq IN (SELECT f.seq FROM features f JOIN verdicts v ON v.seq = f.seq
			WHERE v.seq < $1 AND NOT EXISTS (SELECT 1 FROM reviews r WHERE r.id = v.id))`, before)
		if err != nil {
			return err
		}
		dropped, err := result.RowsAffected()
		n = int(dropped)
		return err
	})
	return n, err
}

func (d *db) State(ctx context.Context, key string) ([]byte, error) {
	var value []byte
	err := d.read.QueryRowContext(ctx, `SELECT value FROM state WHERE key = $1 AND value IS NOT NULL`, key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("state %q: %w", key, ErrNotFound)
	}
	return value, err
}

func (d *db) States(ctx context.Context, prefix string) (map[string][]byte, error) {
	values := map[string][]byte{}
	err := query(ctx, d.read, func(row *sql.Rows) error {
		var key string
		var value []byte
		err := row.Scan(&key, &value)
		values[key] = value
		return err
	}, `SELECT key, value FROM state WHERE substr(key, 1, $1) = $2 AND value IS NOT NULL`, utf8.RuneCountInString(prefix), prefix)
	return values, err
}

func (d *db) SetState(ctx context.Context, key string, value []byte) error {
	return d.UpdateState(ctx, key, func([]byte) ([]byte, error) { return value, nil })
}

func (d *db) UpdateState(ctx context.Context, key string, change func(old []byte) ([]byte, error)) error {
	return d.inTx(ctx, func(tx *sql.Tx) error {
		// The row is there from here on, so that it can be locked.
		if _, err := tx.ExecContext(ctx, `INSERT INTO state (key, value) VALUES ($1, NULL) ON CONFLICT (key) DO NOTHING`, key); err != nil {
			return err
		}
		statement := `SELECT value FROM state WHERE key = $1`
		if d.postgres {
			statement += ` FOR UPDATE`
		}
		var old []byte
		if err := tx.QueryRowContext(ctx, statement, key).Scan(&old); err != nil {
			return err
		}
		value, err := change(old)
		if err != nil {
			return err
		}
		if value == nil {
			value = []byte{}
		}
		_, err = tx.ExecContext(ctx, `UPDATE state SET value = $2 WHERE key = $1`, key, value)
		return err
	})
}

func (d *db) Ping(ctx context.Context) error {
	if d.readOnly {
		return d.read.PingContext(ctx)
	}
	// A full disk shows only when something is written.
	return d.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE head SET seq = seq WHERE one = 1`)
		return err
	})
}

func (d *db) Head(ctx context.Context) (Head, error) {
	h, _, err := d.ends(ctx)
	return h, err
}

// ends returns the head and the highest number of a line, as they are at one moment.
func (d *db) ends(ctx context.Context) (h Head, highest int64, err error) {
	var sum []byte
	var verdict, review sql.NullInt64
	err = d.read.QueryRowContext(ctx, `SELECT seq, hash, (SELECT max(seq) FROM verdicts), (SELECT max(seq) FROM reviews) FROM head WHERE one = 1`).Scan(&h.Seq, &sum, &verdict, &review)
	if errors.Is(err, sql.ErrNoRows) {
		err = &BrokenError{Seq: 1, What: "the head is gone"}
	}
	h.Hash = hex.EncodeToString(sum)
	return h, max(verdict.Int64, review.Int64), err
}
