package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Open opens the store at a place, and creates it if there is none: the path of an
// SQLite file, also as sqlite:PATH, or the address of a PostgreSQL database,
// postgres://…, with the settings of libpq. The schema that a connection finds first
// (search_path) holds the tables. An SQLite file must lie on a disk of this machine,
// as its locks do not work over a network.
func Open(ctx context.Context, place string) (Store, error) { return openStore(ctx, place, &db{}) }

// OpenReadOnly opens a store that exists, for reading. Nothing is created or brought up to date.
func OpenReadOnly(ctx context.Context, place string) (Store, error) {
	return openStore(ctx, place, &db{readOnly: true})
}

func openStore(ctx context.Context, place string, d *db) (_ Store, err error) {
	if IsPostgres(place) {
		err = d.openPostgres(place)
	} else {
		err = d.openSQLite(ctx, strings.TrimPrefix(place, "sqlite:"))
	}
	if err == nil {
		err = d.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the store %s: %w", Name(place), err), d.Close())
	}
	return d, nil
}

// IsPostgres reports whether Open takes the place for a PostgreSQL address.
func IsPostgres(place string) bool {
	return strings.HasPrefix(place, "postgres://") || strings.HasPrefix(place, "postgresql://")
}

// Name returns what to call a place that Open takes in messages: without the password
// that an address may have.
func Name(place string) string {
	if !IsPostgres(place) {
		return place
	}
	u, err := url.Parse(place)
	if err != nil {
		return "PostgreSQL"
	}
	u.RawQuery = ""
	return u.Redacted()
}

// openSQLite opens a file by two pools: one connection that writes, and some that
// read meanwhile.
func (d *db) openSQLite(ctx context.Context, path string) error {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return options.Errorf("Store", "%q is no file", path)
	}
	err := disk.CheckReadable(path, disk.Values)
	exists := err == nil
	if err != nil && (d.readOnly || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	}
	place := filepath.ToSlash(path)
	if !strings.HasPrefix(place, "/") {
		place = "/" + place // C:/ would be the URL's host
	}
	at := func(settings url.Values) string {
		// The timeout comes before the journal mode, which may have to wait.
		settings["_pragma"] = append([]string{"busy_timeout(10000)", "trusted_schema(0)"}, settings["_pragma"]...)
		return (&url.URL{Scheme: "file", Path: place, RawQuery: settings.Encode()}).String()
	}
	if d.read, err = sql.Open("sqlite", at(url.Values{"mode": {"ro"}, "_pragma": {"query_only(1)"}})); err != nil {
		return err
	}
	d.read.SetMaxOpenConns(readers)
	d.read.SetMaxIdleConns(readers)
	if exists {
		if err := d.foreign(ctx); err != nil {
			return err
		}
	}
	if !d.readOnly {
		if !exists { // before the driver makes one that others may read
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		if d.file, err = os.Stat(path); err != nil {
			return err
		}
		d.path = path
		if d.write, err = sql.Open("sqlite", at(url.Values{"_txlock": {"immediate"}, "_pragma": {"journal_mode(WAL)", "synchronous(FULL)"}})); err == nil {
			d.write.SetMaxOpenConns(1)
		}
	}
	return err
}

// readers is how many connections read at a time.
const readers = 4

func (d *db) openPostgres(address string) error {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return err // without the password
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, 5*time.Second)
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "mlrbfn"
	}
	if d.readOnly {
		config.RuntimeParams["default_transaction_read_only"] = "on"
	}
	d.postgres = true
	d.read = stdlib.OpenDB(*config)
	d.read.SetMaxOpenConns(2 * readers)
	d.read.SetMaxIdleConns(readers)
	d.write = d.read
	return nil
}

// formatVersion is that of the tables that this program makes and reads.
const formatVersion = 2

// migrations are the statements that lead from each version to the next, in
// PostgreSQL's words; sqliteWords gives SQLite's.
var migrations = [formatVersion]string{`
CREATE TABLE verdicts (
	seq BIGINT PRIMARY KEY,
	id TEXT NOT NULL UNIQUE,
	time BIGINT NOT NULL,
	source TEXT NOT NULL, name TEXT NOT NULL, image TEXT NOT NULL, detector TEXT NOT NULL, model TEXT NOT NULL,
	class TEXT NOT NULL, confidence DOUBLE PRECISION, score DOUBLE PRECISION, p_value DOUBLE PRECISION, threshold DOUBLE PRECISION,
	ood BOOLEAN NOT NULL,
	hash BYTEA NOT NULL);
CREATE INDEX verdicts_time ON verdicts (time);
CREATE INDEX verdicts_image ON verdicts (image);
CREATE INDEX verdicts_flagged ON verdicts (p_value, score) WHERE ood;
CREATE TABLE reviews (
	seq BIGINT PRIMARY KEY,
	id TEXT NOT NULL,
	time BIGINT NOT NULL,
	reviewer TEXT NOT NULL, decision TEXT NOT NULL, class TEXT NOT NULL,
	hash BYTEA NOT NULL);
CREATE INDEX reviews_id ON reviews (id, seq);
CREATE TABLE head (one BIGINT PRIMARY KEY CHECK (one = 1), seq BIGINT NOT NULL, hash BYTEA NOT NULL);
CREATE TABLE features (seq BIGINT PRIMARY KEY, data BYTEA NOT NULL);
CREATE TABLE state (key TEXT PRIMARY KEY, value BYTEA);
`, `
CREATE TABLE counts (
	hour BIGINT NOT NULL, source TEXT NOT NULL, class TEXT NOT NULL, detector TEXT NOT NULL, ood BOOLEAN NOT NULL, bin BIGINT NOT NULL,
	n BIGINT NOT NULL, sum DOUBLE PRECISION NOT NULL,
	PRIMARY KEY (hour, source, class, detector, ood, bin));
INSERT INTO counts SELECT time / ` + fmt.Sprint(hour.Microseconds()) + `, source, class, detector, ood, ` + bin + `, count(*), coalesce(sum(p_value), 0)
	FROM verdicts GROUP BY 1, 2, 3, 4, 5, 6;
`}

var sqliteWords = strings.NewReplacer("BIGINT PRIMARY KEY", "INTEGER PRIMARY KEY", "BIGINT", "INTEGER", "DOUBLE PRECISION", "REAL", "BYTEA", "BLOB")

// migrateLock is the advisory lock that one replica at a time makes tables under.
const migrateLock = 0x6d6c7262666e // "mlrbfn"

// migrate makes the tables, or brings those of an older version up to date.
func (d *db) migrate(ctx context.Context) error {
	if d.readOnly {
		version, err := d.version(ctx, d.read)
		if err == nil && version == 0 {
			err = errors.New("it is no store yet")
		}
		d.tallied = version > 1
		return err
	}
	d.tallied = true
	return d.inTx(ctx, func(tx *sql.Tx) error {
		if d.postgres {
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, d.words(`CREATE TABLE IF NOT EXISTS mlrbfn_store (version BIGINT NOT NULL)`)); err != nil {
			return err
		}
		version, err := d.version(ctx, tx)
		if err != nil || version == formatVersion {
			return err
		}
		for ; version < formatVersion; version++ {
			for statement := range strings.SplitSeq(d.words(migrations[version]), ";\n") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				if _, err := tx.ExecContext(ctx, statement); err != nil {
					return fmt.Errorf("version %d: %w", version+1, err)
				}
			}
			if version == 0 {
				if _, err := tx.ExecContext(ctx, `INSERT INTO head (one, seq, hash) VALUES (1, 0, $1)`, make([]byte, len(hash{}))); err != nil {
					return err
				}
			}
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM mlrbfn_store`); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO mlrbfn_store (version) VALUES ($1)`, formatVersion)
		return err
	})
}

// foreign refuses an SQLite file of another program, before anything writes to it. A
// PostgreSQL database may be shared, and tables of the same name are an error there.
func (d *db) foreign(ctx context.Context) error {
	var ours, all int
	err := d.read.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE name = 'mlrbfn_store'), count(*) FROM sqlite_master WHERE type = 'table'`).Scan(&ours, &all)
	if err == nil && ours == 0 && all > 0 {
		err = errors.New("it is a database of another program")
	}
	return err
}

func (d *db) words(statements string) string {
	if d.postgres {
		return statements
	}
	return sqliteWords.Replace(statements)
}

// version returns the version of the tables, 0 where there are none.
func (d *db) version(ctx context.Context, in queried) (int, error) {
	var version int
	err := in.QueryRowContext(ctx, `SELECT version FROM mlrbfn_store`).Scan(&version)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err == nil && version > formatVersion {
		err = fmt.Errorf("%w: it has version %d, and this program knows %d", ErrNewer, version, formatVersion)
	}
	return version, err
}
