"""Create the table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("customer", models.CharField(max_length=100)),
                ("confirmed", models.BooleanField(default=False)),
                ("packed", models.BooleanField(default=False)),
            ],
        ),
    )
