"""Do these rows fit this table? Told by their columns alone, before anything is read, written or changed.

Never asks the table, and Spark only whether it tells `a` from `A`, when there are both.

>>> rows = StructType([StructField("topic", StringType()), StructField("partition", StringType())])
>>> check_key(rows, "the rows for lake.shop.orders")
Traceback (most recent call last):
kafka_liveness_dagster.spark.errors.TableSchemaError: the rows for lake.shop.orders must have partition int (is ...
>>> column(StructField("net `price`", ArrayType(IntegerType())))
'`net ``price``` array<int>'
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

from kafka_liveness_dagster.spark.errors import TableSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

KEY = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
OF_ICEBERG = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
"""Its metadata columns. A table with a column of that name is written once, and refuses the first rewrite or DELETE."""
_HELD = (
    t.BooleanType, t.ByteType, t.ShortType, IntegerType, LongType, t.FloatType, t.DoubleType, t.DecimalType,
    StringType, t.CharType, t.VarcharType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType,
    t.VariantType,  # of version 3; an older table says so itself
)  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """What a table and rows do not have in common.

    Attributes:
        new: columns of the rows that the table lacks.
        lacking: columns of the table that the rows lack; null is written.
        wider: columns of the rows whose type holds more than the table's, into which Iceberg can turn it.
    """

    new: tuple[StructField, ...]
    lacking: tuple[StructField, ...]
    wider: tuple[StructField, ...] = ()


def check_rows(frame: DataFrame, of: str) -> None:
    """Pass when the rows have the key, and no two columns of one name.

    Raises:
        TableSchemaError: they have not.
    """
    rows = frame.schema
    check_key(rows, of)
    if twins := _twins(rows.names, frame):
        raise TableSchemaError(
            f"{of} have columns that Spark cannot tell apart: {', '.join(twins)}: nothing was written; rename or drop "
            "all but one in the transform"
        )


def check_key(columns: StructType, of: str) -> None:
    """Pass when there are topic, partition and offset, of the types Kafka gives.

    Raises:
        TableSchemaError: one is missing or of another type.
    """
    have = {field.name: field.dataType for field in columns}
    wrong = [
        f"{name} {wanted.simpleString()}" + (f" (is {have[name].simpleString()})" if name in have else "")
        for name, wanted in KEY.items()
        if have.get(name) != wanted
    ]
    if wrong:
        raise TableSchemaError(
            f"{of} must have {', '.join(wrong)}: nothing was written; a batch is replaced by its offsets, so keep "
            "the three columns in what the transform returns and in the table"
        )


def check_names(names: Iterable[str], of: str, remedy: str) -> None:
    """Pass when no column has the name of one of Iceberg's own.

    Raises:
        TableSchemaError: one has.
    """
    if taken := [name for name in names if name.lower() in OF_ICEBERG]:
        raise TableSchemaError(
            f"{of} have {_quoted(taken)}, a name of Iceberg's own metadata columns: the table could not be rewritten; "
            f"nothing was written. {remedy}"
        )


def check_new(fields: Sequence[StructField], name: str) -> None:
    """Pass when a table can have these columns.

    Raises:
        TableSchemaError: it cannot.
    """
    check_names((field.name for field in fields), f"the rows for {name}", "Name it otherwise in the transform")
    unfit = [what for field in fields for what in _unfit(field, "")]
    if unfit:
        raise TableSchemaError(
            f"table {name} cannot have {', '.join(unfit)}: nothing was written; CAST it in the transform to a type of "
            "Iceberg's, name it, or leave it out"
        )


def fit(frame: DataFrame, columns: StructType, name: str) -> Fit:
    """What is new in the rows, what they lack, and what needs more room.

    Raises:
        TableSchemaError: a new column cannot be, a column is the same but for its case, or one that is lacking may
            not be null.
    """
    rows = frame.schema
    has, there = set(rows.names), set(columns.names)
    new = tuple(field for field in rows if field.name not in there)
    lacking = tuple(field for field in columns if field.name not in has)
    if twins := _twins([*columns.names, *(field.name for field in new)], frame):
        raise TableSchemaError(
            f"rows and table {name} have columns that differ by case only: {', '.join(twins)}: nothing was written; "
            "give them the table's name in the transform"
        )
    check_new(new, name)
    if required := [field.name for field in lacking if not field.nullable]:
        raise TableSchemaError(
            f"rows for {name} lack {', '.join(required)}, which the table requires: nothing was written; "
            "add the columns in the transform or drop NOT NULL"
        )
    kinds = {field.name: field.dataType for field in columns}
    return Fit(new, lacking, tuple(f for f in rows if f.name in kinds and _widens(kinds[f.name], f.dataType)))


def as_stored(frame: DataFrame, columns: StructType) -> DataFrame:
    """The rows as a table takes them, to find the one it does not: a value too large, a null where none may be.

    Structs, arrays and maps stay as they are: a CAST would go by position, where Spark's writing goes by name.
    """
    there = {field.name: field for field in columns}
    return frame.selectExpr(*(_stored(field.name, there.get(field.name)) for field in frame.schema))


def quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def column(field: StructField) -> str:
    """A column as SQL declares it; pyspark's own toDDL works only in the thread that opened the session."""
    return f"{quoted(field.name)} {sql_type(field.dataType)}"


def sql_type(kind: DataType) -> str:
    """A type as SQL names it."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())


def _widens(has: DataType, given: DataType) -> bool:
    """Whether Iceberg can make the one of the other, and no value has to fit that does not."""
    if isinstance(has, t.DecimalType) and isinstance(given, t.DecimalType):
        return bool(has.scale == given.scale and has.precision < given.precision)
    return (type(has), type(given)) in {(IntegerType, LongType), (t.FloatType, t.DoubleType)}


def _twins(names: Iterable[str], frame: DataFrame) -> list[str]:
    """Names that mean one column to Spark; its setting is asked only when they differ by case."""
    exact, folded = Counter(names), Counter(name.lower() for name in names)
    found = sorted({name for name, often in exact.items() if often > 1})
    if not found and len(folded) < len(exact) and frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        found = [name for name in exact if folded[name.lower()] > 1]
    return [quoted(name) for name in found]


def _stored(name: str, field: StructField | None) -> str:
    if field is None or isinstance(field.dataType, (StructType, ArrayType, MapType)):
        return quoted(name)
    kind = sql_type(field.dataType)
    value = f"CAST({quoted(name)} AS {kind})"
    if not field.nullable:
        literal = name.replace("\\", "\\\\").replace("'", "\\'")
        value = f"coalesce({value}, CAST(raise_error('null in {literal}, which the table requires') AS {kind}))"
    return f"{value} AS {quoted(name)}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _unfit(field: StructField, above: str) -> list[str]:
    """What of a column, and of what is in it, Iceberg has no place for."""
    name = above + quoted(field.name)
    if not field.name:
        return [f"{name}, a column without a name"]
    return _unfit_type(field.dataType, name)


def _unfit_type(kind: DataType, name: str) -> list[str]:
    if isinstance(kind, StructType) and kind.fields:
        return [what for field in kind for what in _unfit(field, f"{name}.")]
    if isinstance(kind, ArrayType):
        return _unfit_type(kind.elementType, f"{name}.element")
    if isinstance(kind, MapType):
        return [*_unfit_type(kind.keyType, f"{name}.key"), *_unfit_type(kind.valueType, f"{name}.value")]
    return [] if isinstance(kind, _HELD) else [f"{name} of type {kind.simpleString()}"]
