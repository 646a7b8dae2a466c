"""Check by their columns whether rows fit a table, before anything is read, written or changed.

Never queries the table. Queries Spark only for ``spark.sql.caseSensitive``, if two names differ by case.

>>> rows = StructType([StructField("topic", StringType()), StructField("partition", StringType())])
>>> require_key_columns(rows, "the rows for lake.shop.orders")
Traceback (most recent call last):
kafka_liveness_dagster.spark.errors.TableSchemaError: the rows for lake.shop.orders must have partition int...
>>> column_ddl(StructField("net `price`", ArrayType(IntegerType())))
'`net ``price``` array<int>'
"""

from __future__ import annotations

from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import types as t
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

from kafka_liveness_dagster.spark.errors import TableSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

KEY_COLUMNS = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
METADATA_COLUMNS = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)
"""Names of Iceberg's metadata columns.

Iceberg writes once to a table with a column of such a name, and refuses the first rewrite or DELETE.
"""
_SUPPORTED_TYPES = (
    t.BooleanType, t.ByteType, t.ShortType, IntegerType, LongType, t.FloatType, t.DoubleType, t.DecimalType,
    StringType, t.CharType, t.VarcharType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType,
    t.VariantType,  # needs format version 3; Iceberg refuses it for an older table
)  # fmt: skip


class NestedField(NamedTuple):
    """A field of a struct inside a column; the struct may be an element of an array or a value of a map.

    Attributes:
        path: names from the column to the field; ``element`` for an array's element, ``value`` for a map's
            value.
        data_type: type of the field in the rows.
    """

    path: tuple[str, ...]
    data_type: DataType

    @property
    def name(self) -> str:
        """The quoted path for SQL."""
        return ".".join(map(quote_name, self.path))


@dataclass(frozen=True)
class SchemaDiff:
    """The differences between the columns of a table and of rows.

    Attributes:
        new: columns of the rows that the table lacks.
        missing: columns of the table that the rows lack; null is written.
        widened: columns, and fields inside columns, with a wider type in the rows, to which Iceberg can
            promote the table's type.
        added: fields inside a column that the rows have and the table lacks.
        incomplete: columns with fields that the table has and the rows lack; null is written.
        table_after: columns of the table after the write.
    """

    new: tuple[StructField, ...]
    missing: tuple[StructField, ...]
    widened: tuple[NestedField, ...] = ()
    _: KW_ONLY
    added: tuple[NestedField, ...] = ()
    incomplete: frozenset[str] = frozenset()
    table_after: StructType = field(default_factory=StructType)

    @property
    def changes_table(self) -> bool:
        """Return whether the table's schema has to change."""
        return bool(self.new or self.widened or self.added)


def require_row_columns(frame: DataFrame, source: str) -> None:
    """Check that the rows have the key columns, and no two columns with one name.

    Raises:
        TableSchemaError: a key column is missing or has another type, or two columns have one name.
    """
    rows = frame.schema
    require_key_columns(rows, source)
    if twins := _ambiguous_names(rows.names, frame):
        raise TableSchemaError(
            f"{source} have columns that Spark cannot distinguish: {', '.join(twins)}. Nothing was written. "
            "Fix: rename or drop all but one in the transform"
        )


def require_key_columns(columns: StructType, source: str) -> None:
    """Check that topic, partition and offset exist with the types of Spark's Kafka source.

    Raises:
        TableSchemaError: a column is missing or has another type.
    """
    have = {field.name: field.dataType for field in columns}
    wrong = [
        f"{name} {wanted.simpleString()}" + (f" (is {have[name].simpleString()})" if name in have else "")
        for name, wanted in KEY_COLUMNS.items()
        if have.get(name) != wanted
    ]
    if wrong:
        raise TableSchemaError(
            f"{source} must have {', '.join(wrong)}. Nothing was written. A batch is replaced by its "
            "offsets. Fix: keep the three columns in the transform's rows and in the table"
        )


def reject_metadata_names(names: Iterable[str], source: str, remedy: str) -> None:
    """Check that no column has the name of one of Iceberg's metadata columns.

    Raises:
        TableSchemaError: a column has such a name.
    """
    if taken := [name for name in names if name.lower() in METADATA_COLUMNS]:
        raise TableSchemaError(
            f"{source} have {_quote_names(taken)}, a name of Iceberg's own metadata columns. Nothing was "
            f"written, because Iceberg could not rewrite the table. Fix: {remedy}"
        )


def require_supported_types(
    fields: Sequence[StructField], name: str, inside: Iterable[NestedField] = ()
) -> None:
    """Check that an Iceberg table can have these columns, and these fields inside columns.

    Raises:
        TableSchemaError: a name or a type is not supported.
    """
    reject_metadata_names(
        (field.name for field in fields), f"the rows for {name}", "rename the column in the transform"
    )
    unfit = [what for field in fields for what in _unsupported(field, "")]
    for one in inside:
        above = "".join(f"{quote_name(part)}." for part in one.path[:-1])
        unfit += _unsupported(StructField(one.path[-1], one.data_type), above)
    if unfit:
        raise TableSchemaError(
            f"Table {name} cannot have {', '.join(unfit)}. Nothing was written. Fix: CAST it in the "
            "transform to a type that Iceberg supports, name it, or leave it out"
        )


def diff_schema(frame: DataFrame, columns: StructType, name: str) -> SchemaDiff:
    """Return the differences between the columns of the rows and of the table.

    Raises:
        TableSchemaError: the rows do not fit. Iceberg does not support a new column, a name differs by case
            only, or a missing column must not be null. Fields inside columns have the same rules.
    """
    rows = {field.name: field for field in frame.schema}
    there = set(columns.names)
    new = tuple(field for field in rows.values() if field.name not in there)
    lacking = tuple(field for field in columns if field.name not in rows)
    if twins := _ambiguous_names([*columns.names, *(field.name for field in new)], frame):
        raise TableSchemaError(
            f"Rows and table {name} have columns that differ by case only: {', '.join(twins)}. Nothing was "
            "written. Fix: use the table's names in the transform"
        )
    found = _NestedDiff()
    given = [
        (field, rows[field.name].dataType if field.name in rows else field.dataType) for field in columns
    ]
    after = [
        StructField(f.name, found.merged_type(f.dataType, kind, (f.name,)), f.nullable) for f, kind in given
    ]
    require_supported_types(new, name, found.added)
    if required := [*(field.name for field in lacking if not field.nullable), *found.required]:
        raise TableSchemaError(
            f"Rows for {name} lack {', '.join(required)}, which the table requires. Nothing was written. "
            "Fix: add the columns in the transform, or drop NOT NULL"
        )
    return SchemaDiff(
        new,
        lacking,
        tuple(found.wider),
        added=tuple(found.added),
        incomplete=frozenset(found.incomplete),
        table_after=StructType([*after, *(StructField(field.name, field.dataType) for field in new)]),
    )


@dataclass(frozen=True)
class _NestedDiff:
    """The differences inside columns."""

    added: list[NestedField] = field(default_factory=list)
    wider: list[NestedField] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    incomplete: set[str] = field(default_factory=set)

    def merged_type(self, has: DataType, given: DataType, path: tuple[str, ...]) -> DataType:
        """Return the type of a column, or of a field inside it, after the write.

        Incompatible types stay as they are, because Spark refuses the rows and names the types. Keys of maps
        stay, too, because Iceberg adds no fields to them.
        """
        if isinstance(has, StructType) and isinstance(given, StructType):
            return StructType([*self._merge_existing(has, given, path), *self._merge_added(has, given, path)])
        if isinstance(has, ArrayType) and isinstance(given, ArrayType):
            element = self.merged_type(has.elementType, given.elementType, (*path, "element"))
            return ArrayType(element, has.containsNull)
        if isinstance(has, MapType) and isinstance(given, MapType):
            value = self.merged_type(has.valueType, given.valueType, (*path, "value"))
            return MapType(has.keyType, value, has.valueContainsNull)
        if _can_widen(has, given):
            self.wider.append(NestedField(path, given))
            return given
        return has

    def _merge_existing(
        self, has: StructType, given: StructType, path: tuple[str, ...]
    ) -> Iterator[StructField]:
        for one in has:
            inside = (*path, one.name)
            if (mine := _find_matching_field(one.name, given)) is not None:
                yield StructField(
                    one.name, self.merged_type(one.dataType, mine.dataType, inside), one.nullable
                )
                continue
            self.incomplete.add(path[0])
            if not one.nullable:
                self.required.append(".".join(map(quote_name, inside)))
            yield one

    def _merge_added(
        self, has: StructType, given: StructType, path: tuple[str, ...]
    ) -> Iterator[StructField]:
        for one in given:
            if _find_matching_field(one.name, has) is None:
                self.added.append(NestedField((*path, one.name), one.dataType))
                yield StructField(one.name, one.dataType)


def reshape_expression(value: str, given: DataType, wanted: DataType, depth: int = 0) -> str:
    """Return a value's SQL with the fields of another type, in that type's order.

    Fields that the value lacks are null. Fields that the other type lacks are left out. A value is null if
    its type does not fit the other type. No value is converted.

    >>> has, wanted = (
    ...     StructType([StructField(name, IntegerType()) for name in names]) for names in ("a", "ab")
    ... )
    >>> reshape_expression("`v`", has, wanted)
    "IF(`v` IS NULL, NULL, named_struct('a', `v`.`a`, 'b', CAST(NULL AS int)))"
    >>> reshape_expression("`v`", ArrayType(has), ArrayType(has))
    '`v`'
    """
    if _has_fields_in_order(given, wanted):
        return value
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        fields = (
            f"{_literal(one.name)}, "
            + (
                f"CAST(NULL AS {sql_type(one.dataType)})"
                if (mine := _find_matching_field(one.name, given)) is None
                else reshape_expression(
                    f"{value}.{quote_name(mine.name)}", mine.dataType, one.dataType, depth=depth
                )
            )
            for one in wanted
        )
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(fields)}))"
    part = f"_part{depth}"
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        element = reshape_expression(part, given.elementType, wanted.elementType, depth=depth + 1)
        return f"transform({value}, {part} -> {element})"
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        inner = reshape_expression(part, given.valueType, wanted.valueType, depth=depth + 1)
        return f"transform_values({value}, (_key{depth}, {part}) -> {inner})"
    return f"CAST(NULL AS {sql_type(wanted)})"


def cast_to_table(frame: DataFrame, columns: StructType) -> DataFrame:
    """Return the rows with the table's types, to find a row that the table refuses.

    Such a row has a value that is too large, or a null in a required column. A CAST of a struct maps fields
    by position, but Spark writes them by name. So the fields are put into the table's order first.
    """
    there = {field.name: field for field in columns}
    return frame.selectExpr(*(_cast_expression(field, there.get(field.name)) for field in frame.schema))


def quote_name(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def column_ddl(field: StructField) -> str:
    """Return a column's SQL declaration.

    Pyspark's own ``toDDL`` works only in the thread that opened the session.
    """
    return f"{quote_name(field.name)} {sql_type(field.dataType)}"


def sql_type(kind: DataType) -> str:
    """Return the SQL name of a type."""
    if isinstance(kind, StructType):
        return (
            f"struct<{', '.join(f'{quote_name(field.name)}: {sql_type(field.dataType)}' for field in kind)}>"
        )
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())


def _can_widen(has: DataType, given: DataType) -> bool:
    """Return whether Iceberg can promote the table's type to the rows' type without loss."""
    if isinstance(has, t.DecimalType) and isinstance(given, t.DecimalType):
        return bool(has.scale == given.scale and has.precision < given.precision)
    return (type(has), type(given)) in {(IntegerType, LongType), (t.FloatType, t.DoubleType)}


def _ambiguous_names(names: Iterable[str], frame: DataFrame) -> list[str]:
    """Return names that are one column for Spark; read its setting only if names differ by case."""
    exact = Counter(names)
    folded = Counter(name.lower() for name in names)
    found = sorted({name for name, often in exact.items() if often > 1})
    if (
        not found
        and len(folded) < len(exact)
        and frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true"
    ):
        found = [name for name in exact if folded[name.lower()] > 1]
    return [quote_name(name) for name in found]


def _cast_expression(given: StructField, field: StructField | None) -> str:
    name = quote_name(given.name)
    if field is None:
        return name
    kind = sql_type(field.dataType)
    value = f"CAST({reshape_expression(name, given.dataType, field.dataType)} AS {kind})"
    if not field.nullable:
        why = _literal(f"null in {given.name}, which the table requires")
        value = f"coalesce({value}, CAST(raise_error({why}) AS {kind}))"
    return f"{value} AS {name}"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _find_matching_field(name: str, struct: StructType) -> StructField | None:
    """Return the field that Spark writes to for this name: the same name, else one that differs by case.

    In a case-sensitive session Spark refuses the latter by name.
    """
    fields = {field.name: field for field in struct}
    return fields.get(name) or next((one for one in struct if one.name.lower() == name.lower()), None)


def _has_fields_in_order(given: DataType, wanted: DataType) -> bool:
    """Return whether a value has exactly the other type's fields, in the same order.

    The type of each field must not be wider than the other's.
    """
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        fields = zip(given, wanted, strict=False)
        return given.names == wanted.names and all(
            _has_fields_in_order(mine.dataType, its.dataType) for mine, its in fields
        )
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _has_fields_in_order(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return _has_fields_in_order(given.valueType, wanted.valueType)
    return not _can_widen(wanted, given)


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(quote_name(name) for name in names)


def _unsupported(field: StructField, above: str) -> list[str]:
    """Return descriptions of the parts of a column that Iceberg does not support."""
    name = above + quote_name(field.name)
    if not field.name:
        return [f"{name}, a column without a name"]
    return _unsupported_type(field.dataType, name)


def _unsupported_type(kind: DataType, name: str) -> list[str]:
    if isinstance(kind, StructType) and kind.fields:
        return [what for field in kind for what in _unsupported(field, f"{name}.")]
    if isinstance(kind, ArrayType):
        return _unsupported_type(kind.elementType, f"{name}.element")
    if isinstance(kind, MapType):
        return [
            *_unsupported_type(kind.keyType, f"{name}.key"),
            *_unsupported_type(kind.valueType, f"{name}.value"),
        ]
    return [] if isinstance(kind, _SUPPORTED_TYPES) else [f"{name} of type {kind.simpleString()}"]
